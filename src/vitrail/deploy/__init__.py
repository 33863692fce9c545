"""Deployment: prediction from the command line, export, faster backends, and a server."""
