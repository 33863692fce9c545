"""Frozen features: computed once, kept on disk, read back."""
