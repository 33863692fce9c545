"""Tests of what README and docs/ show."""
