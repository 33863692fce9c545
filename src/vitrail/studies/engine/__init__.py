"""Sweeps: a plan of many runs, the queue that makes them, and the table of what they reached."""
