"""Ways to run a model on the machine at hand, measured and selected."""
