"""The browser that pages are opened with."""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Start Debian's Chromium; without it, or playwright, what needs it is skipped."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("there is no chromium to open pages with")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        options = {"executable_path": chromium, "args": ["--no-sandbox", "--disable-gpu"]}
        opened = playwright.chromium.launch(**options)
        yield opened
        opened.close()
