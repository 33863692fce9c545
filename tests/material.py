"""Where the tests' material lies: this project, and what may stand beside it."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[1]
SHARED = Path(os.environ.get("VITRAIL_SHARED", ROOT.parent / "shared"))
"""Absent on a stranger's machine: tests that need it say so and are skipped."""
ODD_IMAGES = SHARED / "oddimages"
REAL_WEIGHTS = SHARED / "weights" / "vit_tiny_patch16_224.augreg_in21k_ft_in1k"
PETS = SHARED / "data" / "pets-mini"
