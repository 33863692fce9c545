"""Weight files from strangers: nothing in them is executed."""
