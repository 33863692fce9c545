"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated

import tyro

Json = Annotated[bool, tyro.conf.arg(help="Print JSON instead of a table.")]
