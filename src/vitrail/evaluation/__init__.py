"""Evaluate a model the way the paper does."""
