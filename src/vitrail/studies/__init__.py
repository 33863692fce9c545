"""Studies: many runs by one plan, and what they show together."""
