"""Take the first screen of a run's report as docs/images/report-light.png and report-dark.png.

python docs/make_report_image.py RUN
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

IMAGES, WIDTH = Path(__file__).resolve().parent / "images", 1000


def main(run: Path) -> None:
    """Open the report light and dark, and keep what is above its second section."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        for scheme in ("light", "dark"):
            page = browser.new_page(
                viewport={"width": WIDTH, "height": 900},
                color_scheme="dark" if scheme == "dark" else "light",
                device_scale_factor=1.5,
            )
            page.goto((run / "report.html").resolve().as_uri())
            second = page.locator("section").nth(1).bounding_box()
            assert second is not None
            page.screenshot(
                path=IMAGES / f"report-{scheme}.png",
                clip={"x": 0, "y": 0, "width": WIDTH, "height": second["y"] - 8},
            )
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
