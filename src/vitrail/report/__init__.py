"""Reports: pages that need nothing else, and their sections."""
