"""Whether a page fits the window, has the colors of its scheme, and names its controls."""

import os
from pathlib import Path
from typing import Any


def assert_fits(page: Any, width: int, paper: str, shot: str) -> None:
    """Check a page; keep a screenshot as `shot` where VITRAIL_SCREENSHOTS says, to look at it."""
    if folder := os.environ.get("VITRAIL_SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"{shot}.png", full_page=True)
    wide = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    unnamed = page.evaluate(
        "[...document.querySelectorAll('input, select, canvas')]"
        ".filter(e => !(e.labels?.length || e.ariaLabel)).map(e => e.outerHTML)"
    )
    assert wide[0] <= wide[1] == width
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == paper
    assert unnamed == []
