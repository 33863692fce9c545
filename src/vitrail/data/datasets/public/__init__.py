"""Public datasets: where they lie, and the layouts they are published in."""
