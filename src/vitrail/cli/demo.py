"""Commands to begin with: the main job on embedded data, and a look at the installation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from vitrail.cli.options import Json
from vitrail.result import print_result


def demo(
    *, out: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("runs/demo"), json: Json = False
) -> None:
    """Show what pre-training is worth: a small ViT, few labels, and the same from scratch.

    Example: vitrail demo

    Args:
        out: Folder for the runs. Those of an earlier demo are replaced.
    """
    from vitrail.studies.demonstration import demo as run

    print_result(run(out), json=json)


def doctor(*, json: Json = False) -> None:
    """Show what is installed, which device is used, which extras are missing, what is cached.

    Example: vitrail doctor
    """
    from vitrail.deploy.installation import doctor as run

    print_result(run(), json=json)
