"""The transformer's layers: norms, attention, MLP, blocks, pooling and head (section 3.1)."""
