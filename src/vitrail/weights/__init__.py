"""How parameters come, go and change shape."""
