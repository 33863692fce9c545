"""The studies of the paper, one file each, which makes a `Study` named STUDY."""
