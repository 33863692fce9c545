"""Datasets of the Hugging Face hub, and Parquet files."""
