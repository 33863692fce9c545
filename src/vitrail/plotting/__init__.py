"""Everything that draws: arrays in, figures out."""
