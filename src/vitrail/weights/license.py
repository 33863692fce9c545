"""Under which license weights were published: by the catalog, their config, or their model card."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from vitrail.config import InputError
from vitrail.download import fetch_from_hub
from vitrail.weights.formats.conventions import section
from vitrail.weights.sources.remote_sources import hub_repository
from vitrail.weights.sources.resolved import LARGEST_JSON, Resolved

_CARD = "README.md"


def find_license(found: Resolved) -> str | None:
    """Say the license that was published with a source's weights; None where nothing says it."""
    if found.published is not None:
        return found.published.license
    said = section(found.config, "pretrained_cfg").get("license") or found.config.get("license")
    if isinstance(said, str) and said:
        return said
    card = _find_card(found)
    return None if card is None else _read_card(card)


def _find_card(found: Resolved) -> Path | None:
    """Find the model card beside the weights, or on the hub."""
    beside = (found.path if found.path.is_dir() else found.path.parent) / _CARD
    if beside.is_file():
        return beside
    hub = hub_repository(found.source)
    with suppress(InputError):  # no network: the weights themselves were in the cache
        return fetch_from_hub(hub[0], _CARD, revision=hub[1]) if hub else None
    return None


def _read_card(path: Path) -> str | None:
    """Read the license in the front matter of a model card, its own name before "other"."""
    with suppress(OSError, UnicodeDecodeError):
        if path.stat().st_size > LARGEST_JSON:
            return None
        front = re.match(r"---\n(.*?)\n---", path.read_text(encoding="utf-8"), re.DOTALL)
        for key in ("license_name", "license"):
            found = re.search(rf"^{key}: *([\w.+ -]+)$", front[1] if front else "", re.MULTILINE)
            if found:
                return found[1].strip()
    return None
