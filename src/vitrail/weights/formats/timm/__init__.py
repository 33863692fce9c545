"""timm's names and configs."""
