"""The report in a real browser: nothing fails, nothing is fetched, and it fits a phone."""

from pathlib import Path
from typing import Any

import pytest

from tests.report.tiny_models import EVIL, save_images, save_model, save_set
from vitrail import inspect

DARK, LIGHT = "rgb(13, 17, 23)", "rgb(255, 255, 255)"


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("page")
    long = f"{EVIL.replace('/', '')}{'x' * 90}.png"
    images = save_images(place / "images", long)
    data = save_set(place / "set", ("a", "b", "c" * 60))
    model = save_model(place / "model")
    out = place / "out"
    report = inspect(model, images, data=data, split="all", against=model, out=out)
    assert report.report is not None
    return report.report


@pytest.mark.parametrize(
    ("width", "scheme", "paper"), [(1280, "light", LIGHT), (360, "dark", DARK)]
)
def test_the_page_works(browser: Any, page_file: Path, width: int, scheme: str, paper: str) -> None:
    size = {"width": width, "height": 800}
    context = browser.new_context(viewport=size, color_scheme=scheme)
    page, said, asked = context.new_page(), [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: said.append(dialog.message))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(page_file.as_uri(), wait_until="load")
    images = page.evaluate("[...document.images].map(i => [i.complete, i.naturalWidth, i.alt])")
    wide = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    color = page.evaluate("getComputedStyle(document.body).backgroundColor")
    overflowing = page.evaluate(
        "[...document.querySelectorAll('.card *')].filter(e => e.getBoundingClientRect().right"
        " > innerWidth + 1).length"
    )
    text = page.inner_text("body")
    context.close()
    assert said == []
    assert [url for url in asked if not url.startswith("data:")] == [page_file.as_uri()]
    assert len(images) > 8
    assert all(done and across > 0 and alt for done, across, alt in images)
    assert wide[0] <= wide[1] == width
    assert overflowing == 0
    assert color == paper
    assert EVIL in text


def test_the_ink_follows_the_browser(browser: Any, page_file: Path) -> None:
    """An SVG is drawn light in the dark: its ink is compared by what a canvas sees."""
    count_light = """async () => {
        const image = document.querySelector('#figure-distances img');
        const canvas = document.createElement('canvas');
        canvas.width = image.width; canvas.height = image.height;
        const context = canvas.getContext('2d');
        context.drawImage(image, 0, 0, image.width, image.height);
        const data = context.getImageData(0, 0, canvas.width, canvas.height).data;
        let sum = 0, count = 0;
        for (let i = 0; i < data.length; i += 4)
            if (data[i + 3] > 200 && Math.abs(data[i] - data[i + 2]) < 30) {
                sum += data[i]; count += 1;
            }
        return sum / count;
    }"""
    levels = {}
    for scheme in ("light", "dark"):
        context = browser.new_context(color_scheme=scheme)
        page = context.new_page()
        page.goto(page_file.as_uri())
        levels[scheme] = page.evaluate(count_light)
        context.close()
    assert levels["light"] == pytest.approx(0x6E, abs=25)
    assert levels["dark"] == pytest.approx(0xC9, abs=25)
