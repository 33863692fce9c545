"""Public datasets: where to download them, and their layouts."""
