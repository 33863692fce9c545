"""Tests of studies/: claims, sweeps, and the studies of the paper."""
