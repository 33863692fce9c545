"""What the steps do to the weights: optimizers, schedules, precision, averages."""
