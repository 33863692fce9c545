"""Weights in other projects' formats, and the check of what was written."""
