"""What a model costs, in closed form from its spec."""
