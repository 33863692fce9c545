"""What is wrong with a dataset: files, labels, copies, leaks."""
