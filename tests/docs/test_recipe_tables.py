"""docs/exactness.md: each value of each recipe has a source, and the page is as it is made."""

from importlib import import_module
from pathlib import Path

import pytest

from vitrail.recipes import RECIPES

OURS = {"finetune-default", "small-data", "small-data:short"}
"""Recipes that were measured, and have no source."""


@pytest.fixture(autouse=True)
def _docs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "docs")


def test_each_value_of_each_recipe_has_a_source() -> None:
    tables = import_module("make_recipe_tables")
    named = [name for source in tables.SOURCES for name in source.recipes]
    assert sorted(named) == sorted(RECIPES.keys() - OURS)
    for source in tables.SOURCES:
        models = [source.model, "ViT-L/16"] if "finetune" in source.recipes else [source.model]
        used: set[str] = set()
        for name in source.recipes:
            for model in models:
                found = tables.settings(name, model)[0].keys()
                lacking = found - source.rows.keys()
                assert not lacking, f"{name}: no source for {lacking}"
                used |= found
        unset = source.rows.keys() - used - {*tables.SHOWN}
        assert not unset, f"{source.recipes[0]} does not set {unset}"
        assert all(where for where, _ in source.rows.values())


def test_the_page_is_as_it_is_made() -> None:
    tables = import_module("make_recipe_tables")
    page = tables.PAGE.read_text(encoding="utf-8")
    assert page == tables.put_in(page), "run python docs/make_recipe_tables.py"
