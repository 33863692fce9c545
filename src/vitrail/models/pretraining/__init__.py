"""Pre-training without labels: masks, targets, and the encoder that predicts them."""
