"""Which backbone suits a dataset and this machine."""
