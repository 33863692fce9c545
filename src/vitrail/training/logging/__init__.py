"""What a run tells: metrics, progress, throughput, viewers."""
