"""Backends: ways to compute a model's logits on this machine, measured and selected."""
