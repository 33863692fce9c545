"""What any page has to be: readable without a mouse, without sight, and on a narrow screen."""

import os
from importlib.resources import files
from pathlib import Path

import pytest

from tests.browser.browsers import Tab


def check(tab: Tab, name: str) -> None:
    """Find nothing to mend by axe-core, nothing beyond the edge, and no complaint of the page.

    axe-core looks for what people who can't see, or can't use a mouse, would miss: contrast, names
    of controls, order of headings, tables.
    """
    pytest.importorskip("axe_playwright_python")
    if folder := os.environ.get("VITRAIL_SCREENSHOTS"):  # to look at them
        tab.screenshot(Path(folder) / f"{name}-{type(tab).__name__}-{tab.width}.png")
    code = (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
    tab.evaluate(f"(() => {{ {code}; }})()")
    found = tab.evaluate(
        "axe.run().then(r => r.violations.map(v => "
        "[v.id, v.nodes.length, v.nodes[0].html.slice(0, 200), v.nodes[0].failureSummary]))"
    )
    assert found == [], f"{name}: {found}"
    wide = tab.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert wide[0] <= wide[1], name
    assert tab.said == [], name
