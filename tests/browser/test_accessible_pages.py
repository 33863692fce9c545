"""Every page in Chromium and Firefox: keys reach all of it, and a screen reader has words for it.

The page of an export is in test_web.py.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import vitrail
from tests.browser.accessible import check
from tests.browser.browsers import Tab
from tests.deploy.serving import image, save_model, started, until
from tests.evaluation.sets import save_tiny, write_images
from tests.material import ROOT
from vitrail.config import override
from vitrail.report.run_report import write_run_report
from vitrail.run import TrainConfig, train
from vitrail.studies.page import study_page
from vitrail.studies.study_list import load_study
from vitrail.studies.study_result import judge_table, table_from_csv

pytest.importorskip("axe_playwright_python")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Write a page of each kind: of a run, two models, cleaning, choosing, runs, a study."""
    place = tmp_path_factory.mktemp("pages")
    model = "ViT/4@8,depth=2,width=32,heads=2,mlp=64"
    config = TrainConfig(data="digits", model=model, out=place / "run", loggers=(), batch=32)
    config = override(config, "length", "3 steps")
    train(config)
    for lr in ("0.01", "0.1"):
        train(override(replace(config, out=place / lr), "optim.lr", lr), report=False)
    vitrail.show_sweep([place / "0.01", place / "0.1"], out=place / "sweep")
    photos, tiny = write_images(place / "photos"), save_tiny(place / "tiny")
    vitrail.inspect(tiny, data=photos, split="all", against=tiny, out=place / "inspected")
    vitrail.clean(photos, model=tiny, out=place / "clean.html")
    vitrail.choose(photos, among=[tiny, place / "run"], out=place / "choice.html")
    study, folder = load_study("table8"), ROOT / "docs" / "studies"
    rows = table_from_csv((folder / "table8.csv").read_text(encoding="utf-8"))
    result = judge_table(study, "desk", "cifar10:DIR", rows, 0.1, folder / "table8.md")
    (place / "study.html").write_text(study_page(study, result), encoding="utf-8")
    return {
        "run": write_run_report(place / "run"),
        "inspected": place / "inspected" / "report.html",
        "clean": place / "clean.html",
        "choice": place / "choice.html",
        "sweep": place / "sweep" / "report.html",
        "study": place / "study.html",
    }


@pytest.mark.parametrize("name", ["run", "inspected", "clean", "choice", "sweep", "study"])
def test_a_page_is_for_everybody(tab: Tab, pages: dict[str, Path], name: str) -> None:
    tab.open(pages[name].as_uri())
    if name in ("run", "inspected"):
        until(lambda: tab.evaluate("document.querySelector('.explorer canvas') !== null"), 20)
    check(tab, name)


def test_keys_move_the_sliders(tab: Tab, pages: dict[str, Path]) -> None:
    tab.open(pages["run"].as_uri())
    until(lambda: tab.evaluate("document.querySelector('.explorer canvas') !== null"), 20)
    seen = [tab.evaluate(DRAWN)]
    tab.evaluate("document.querySelector('.explorer input').focus()")
    tab.press("ArrowLeft")
    seen.append(tab.evaluate(DRAWN))
    tab.press("Tab")
    tab.press("ArrowRight")
    seen.append(tab.evaluate(DRAWN))
    labels = [label for label, _ in seen]
    assert labels[0].startswith("Attention in layer 2 of 2, head mean of all 2: most on")
    assert labels[1].startswith("Attention in layer 1 of 2, head mean of all 2: most on")
    assert labels[2].startswith("Attention in layer 1 of 2, head 1 of 2: most on the patch in row")
    assert len({pixels for _, pixels in seen}) == 3


DRAWN = """(() => {
    const canvas = document.querySelector('.explorer canvas');
    return [canvas.getAttribute('aria-label'), canvas.toDataURL()];
})()"""


def test_the_first_screen_of_a_run_says_its_verdict(tab: Tab, pages: dict[str, Path]) -> None:
    tab.open(pages["run"].as_uri())
    top1 = json.loads((pages["run"].parent / "result.json").read_text())["top1"]
    text, bottom = tab.evaluate(
        "(() => { const e = document.querySelector('.verdict');"
        " return [e.textContent, e.parentElement.getBoundingClientRect().bottom]; })()"
    )
    assert text.split() == [f"{top1:.1%}", "top-1", "accuracy"]
    assert bottom < 800


def test_the_served_page_is_for_everybody(tab: Tab, tmp_path: Path) -> None:
    pytest.importorskip("fastapi")
    save_model(tmp_path / "one", classes=tuple("abcdefg"))
    (tmp_path / "a.png").write_bytes(image(1))
    with started(tmp_path, str(tmp_path / "one"), "--workers", "1") as server:
        address = f"http://127.0.0.1:{server.port}/"
        tab.open(address)
        until(lambda: tab.evaluate("document.querySelector('.panel') !== null"), 20)
        check(tab, "served-empty")
        tab.upload("#file", tmp_path / "a.png")
        until(lambda: tab.evaluate("document.querySelector('#status').textContent") == "Done.", 30)
        check(tab, "served")
        assert tab.evaluate("document.querySelectorAll('.bars li').length") == 5
        tab.evaluate("document.querySelector('.method').focus()")
        tab.evaluate(
            "(() => { const e = document.querySelector('.method'); e.value = 'raw';"
            " e.dispatchEvent(new Event('input')); })()"
        )
        layer = "document.querySelector('.layer-value').textContent"
        until(lambda: tab.evaluate(layer) == "2 of 2", 20)
        tab.press("Tab")
        tab.press("ArrowLeft")
        until(lambda: tab.evaluate(layer) == "1 of 2", 20)
        tab.open(address + "docs")
        check(tab, "served-docs")
