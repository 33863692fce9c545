"""The browsers that pages are opened with."""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser.browsers import ChromiumTab, FirefoxTab, Tab
from tests.cases import slow


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


SCREENS = [("chromium", 1280, False), ("chromium", 390, True)]
FIREFOX = [slow(("firefox-esr", 1280, False)), slow(("firefox-esr", 390, True))]


@pytest.fixture(
    scope="module",
    params=[*SCREENS, *FIREFOX],
    ids=lambda each: f"{each[0]}-{each[1]}-{'dark' if each[2] else 'light'}",
)
def tab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    """Open a page on a desk in the light and on a phone in the dark, in each browser there is."""
    name, width, dark = request.param
    if name == "chromium":
        opened = ChromiumTab(request.getfixturevalue("browser"), width, dark=dark)
    else:
        program = shutil.which(name)
        if program is None:
            pytest.skip(f"there is no {name} to open pages with")
        pytest.importorskip("websockets")
        opened = FirefoxTab(program, tmp_path_factory.mktemp("profile"), width, dark=dark)
    yield opened
    opened.close()
