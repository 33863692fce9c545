"""Models behind HTTP: one process that talks to clients, and others that run the models."""
