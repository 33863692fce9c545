"""The catalog of published checkpoints: what each holds, how well it does, its license."""
