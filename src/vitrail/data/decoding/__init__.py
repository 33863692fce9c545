"""Encoded pictures to pixels, whatever a file holds."""
