"""Positions: absolute tables, relative biases, rotary positions, and their resizing."""
