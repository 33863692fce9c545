"""Every kind of data set, opened by its text."""
