"""Encoded images to pixels, whatever a file holds."""
