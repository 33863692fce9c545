"""What frozen features are worth: few-shot, linear probe, nearest neighbors."""
