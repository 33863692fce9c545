"""The command that looks at the installation."""

from __future__ import annotations

from vitrail.cli.options import Json
from vitrail.result import print_result


def doctor(*, json: Json = False) -> None:
    """Show what is installed, which device is used, which extras are missing, what is cached.

    Example: vitrail doctor
    """
    from vitrail.deploy.doctor import doctor as run

    print_result(run(), json=json)
