"""How a model learns: rates, optimisers, averages, what is trained, and a run's state on disk."""
