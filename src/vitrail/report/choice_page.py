"""Choose a backbone for a dataset, and write the page that shows why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Unpack

from vitrail.config import InputError
from vitrail.data.datasets.open import Data
from vitrail.evaluation.choosing.rank_backbones import BackboneRanking, rank_backbones
from vitrail.evaluation.features.compute import FeatureOptions
from vitrail.files import check_writable, write_whole
from vitrail.report.html_page import ReportSection, escape, make_page, result_card
from vitrail.weights.loaded import AnyModel
from vitrail.weights.published.at_hand import weights_at_hand


def choose(
    data: Data,
    *,
    among: Sequence[AnyModel] = (),
    test: str | None = None,
    out: str | Path | None = None,
    **options: Unpack[FeatureOptions],
) -> BackboneRanking:
    """Rank backbones for a dataset by probe accuracy, speed and size, and recommend one.

    Those are the free ones of the catalog that are in the caches, and `among`. `out` is a page to
    write, FILE.html. `options` say how features are computed.
    """
    if out is not None:
        if Path(out).suffix != ".html":
            raise InputError(f"--out {out}: expected the name of a page, such as choice.html")
        check_writable(Path(out))
    sources = [each.source for each in weights_at_hand()]
    models = [*among, *(each for each in sources if each not in among)]
    if not models:
        raise InputError(
            "no backbone was downloaded: give --among MODEL …, or download one with vitrail "
            "weights show timm:vit_small_patch16_224.augreg_in21k"
        )
    found = rank_backbones(models, data, test=test, **options)
    if out is not None:
        found = replace(found, page=str(out))
        write_whole(Path(out), _write_page(found))
    return found


def _write_page(found: BackboneRanking) -> str:
    from vitrail.plotting.choosing_plots import draw_pareto

    ranked, chosen = found.ranked, found.recommended
    plot = draw_pareto(
        [each.model.rsplit("/", 1)[-1] for each in ranked],
        [each.speed for each in ranked],
        [each.top1 for each in ranked],
        [each.on_front for each in ranked],
        ranked.index(chosen),
    )
    verdict = (
        f'<div class="card">\n<h3>{escape(chosen.model)}</h3>\n<p>{escape(chosen.name)}, '
        f"{escape(found.reason)}.</p>\n<p>Next: "
        f"<code>{escape(found.next_command)}</code></p>\n</div>"
    )
    first = ReportSection("Recommended", cards=[verdict])
    first.draw(plot)
    table = ReportSection("All backbones", cards=[result_card("By accuracy", found.table())])
    summary = f"{len(ranked)} backbones on {found.images:,} test images of {found.data}."
    footer = "Written by vitrail choose."
    return make_page("Choosing a backbone", summary, [first, table], footer)
