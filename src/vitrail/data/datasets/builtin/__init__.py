"""Datasets that come with the package: digits, and shapes without limit."""
