"""Metrics of predictions, with their confidence intervals."""
