"""A run's checkpoints and its folder."""
