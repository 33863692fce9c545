"""Where weights come from: this machine, or the network."""
