"""Every kind of dataset."""
