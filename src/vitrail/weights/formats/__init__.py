"""One table for each source of weights."""
