"""The page of `vitrail clean` in a real browser: decisions are saved as the commands read them."""

import shutil
from pathlib import Path
from typing import Any

import pytest

import vitrail
from tests.evaluation.sets import save_tiny, write_images
from vitrail.data.datasets.decisions import Decision, parse_decisions
from vitrail.report.clean_page import AppliedDecisions


def test_decisions_are_saved_as_they_are_read(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    photos = write_images(tmp_path / "photos")
    odd = 'a, "quoted" \\ name.png'
    shutil.copy(photos / "a" / "0.png", photos / "c" / odd)
    vitrail.clean(photos, model=save_tiny(tmp_path / "tiny"), out=tmp_path / "page.html")
    context = browser.new_context(accept_downloads=True)
    page = context.new_page()
    said: list[str] = []
    page.on("pageerror", lambda error: said.append(str(error)))
    page.goto(f"file://{tmp_path / 'page.html'}")
    assert page.inner_text("#count") == "No decision yet."
    card = page.locator("#leak form, #duplicate form").first
    name = card.get_attribute("data-path")
    card.locator('input[value="relabel"]').click()
    card.locator("select").select_option("b")
    page.locator('#unreadable form input[value="drop"]').first.click()
    assert page.inner_text("#count") == "1 to drop, 1 to relabel, 0 to keep"
    with page.expect_download() as saved:
        page.click("#save")
    file = tmp_path / "saved.csv"
    saved.value.save_as(file)
    context.close()
    assert said == []
    assert odd.replace("\\", "\\\\") in name or name == "a/0.png"
    expected = {name: Decision("relabel", "b"), "b/broken.png": Decision("drop")}
    assert parse_decisions(file.read_text(), "saved.csv") == expected
    applied = vitrail.clean(photos, decisions=file)
    assert isinstance(applied, AppliedDecisions)
    assert (applied.drop, applied.relabel) == (1, 1)


def test_decisions_survive_a_reload_and_are_made_by_keyboard(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    photos = write_images(tmp_path / "photos")
    (photos / "vitrail-decisions.csv").write_text("path,decision,label\na/0.png,relabel,b\n")
    shutil.copy(photos / "a" / "0.png", photos / "c" / "x.png")
    vitrail.clean(photos, model=save_tiny(tmp_path / "tiny"), out=tmp_path / "page.html")
    context = browser.new_context()
    page = context.new_page()
    asked: list[str] = []

    def answer(dialog: Any) -> None:
        asked.append(dialog.type)
        dialog.accept()

    page.on("dialog", answer)
    page.goto(f"file://{tmp_path / 'page.html'}")
    count = len(page.query_selector_all("form.card"))
    assert count >= 2
    assert page.inner_text("#count") == "0 to drop, 1 to relabel, 0 to keep"
    page.keyboard.press("ArrowRight")
    names = []
    for key in ("d", "k"):
        names.append(page.evaluate("document.activeElement.dataset.path"))
        page.keyboard.press(key)
        page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.className") == "card"
    assert len(set(names)) == 2
    assert "a/0.png" not in names
    decided = "1 to drop, 1 to relabel, 1 to keep"
    assert page.inner_text("#count") == decided
    page.keyboard.press("u")
    assert page.inner_text("#count") == "1 to drop, 1 to relabel, 0 to keep"
    page.keyboard.press("k")  # the card that undo went back to
    assert page.inner_text("#count") == decided
    page.reload()
    assert asked == ["beforeunload"]
    assert page.inner_text("#count") == decided
    assert page.locator("form.decided").count() >= 2
    context.close()
