"""The command that shows the main job on embedded data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from vitrail.cli.options import Json
from vitrail.result import print_result


def demo(
    *, out: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("runs/demo"), json: Json = False
) -> None:
    """Pre-train a small ViT, transfer it at a higher resolution, and compare.

    Example: vitrail demo

    Args:
        out: Folder for the three runs. Those of an earlier demo are replaced.
    """
    from vitrail.demonstration import demo as run

    print_result(run(out), json=json)
