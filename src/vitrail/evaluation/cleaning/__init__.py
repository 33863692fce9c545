"""What is probably wrong with a dataset: labels, outliers, classes that can't be told apart."""
