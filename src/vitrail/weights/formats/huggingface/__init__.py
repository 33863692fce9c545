"""transformers' names and configs."""
