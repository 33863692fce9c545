"""How a model learns: rates, optimizers, averages, what is trained, and a run's state on disk."""
