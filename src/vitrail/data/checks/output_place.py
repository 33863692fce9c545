"""Where results may not be written: into a folder of images, where they would become a class."""

from __future__ import annotations

import os
from pathlib import Path

from vitrail.config import InputError
from vitrail.data.datasets.folder import NESTED, is_among_images
from vitrail.data.datasets.open import Data, plain_data
from vitrail.text import expand, show


def check_output_place(out: str | Path, data: Data | None) -> None:
    """Refuse a folder to write into that would be a class of the dataset, or hold its classes."""
    if not isinstance(data, str | os.PathLike):
        return
    text = plain_data(os.fspath(data)).removeprefix("folder:").removesuffix(NESTED)
    root = expand(text)
    if text and root.is_dir() and is_among_images(root, Path(out)):
        above, name = os.path.split(os.path.abspath(root))
        raise InputError(
            f"{show(Path(out))} is in the folder of the images, where it would become a class; "
            f"choose an --out elsewhere, such as {show(Path(os.path.relpath(above), 'runs', name))}"
        )
