"""Models where they are needed: exported, made faster on the machine at hand, measured."""
