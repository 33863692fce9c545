"""Choosing a backbone: the front and the recommendation by hand, what is at hand, bad input."""

import json
from pathlib import Path

import pytest

import vitrail
from tests.commands import run
from tests.evaluation.probes.problems import write_colors
from tests.evaluation.sets import save_tiny
from vitrail.evaluation.choosing.rank_backbones import BackboneRanking, RankedBackbone, mark_front
from vitrail.evaluation.metrics.intervals import Estimate
from vitrail.weights.published.at_hand import is_free, weights_at_hand
from vitrail.weights.published.catalog import CATALOG, find


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    save_tiny(tmp_path / "one")
    save_tiny(tmp_path / "two", seed=1)
    write_colors(tmp_path / "photos")
    return tmp_path


def backbone(model: str, top1: float, speed: float) -> RankedBackbone:
    interval = Estimate(top1, top1 - 0.04, top1 + 0.04)
    return RankedBackbone(
        model=model, name="ViT", top1=interval, few_shot=top1, speed=speed, parameters=1
    )


def test_the_front_and_the_fastest_within_error() -> None:
    rows = [("L", 0.90, 2.0), ("B", 0.88, 9.0), ("slow", 0.87, 5.0), ("Ti", 0.70, 50.0)]
    ranked = tuple(mark_front([backbone(*row) for row in rows]))
    assert [each.on_front for each in ranked] == [True, True, False, True]
    found = BackboneRanking(data="photos", shots=5, images=100, ranked=ranked)
    assert found.recommended.model == "B"  # 4.5 times as fast, and above the best's 86 %
    assert "4.5 times as fast" in found.recommendation
    assert found.recommendation.endswith("vitrail finetune photos --weights B")


def test_the_command_ranks_as_the_probe_measures(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("choose", "photos", "--among", "one", "two", "--out", "choice.html", "--json")
    code, out, _ = run(capsys, *arguments)
    assert code == 0
    said = json.loads(out)
    for row in said["models"]:
        assert row["top1"]["value"] == pytest.approx(vitrail.probe(row["model"], "photos").top1)
        few = vitrail.fewshot(row["model"], "photos", shots=[5]).to_dict()["shots"]["5"]
        assert row["few_shot"] == pytest.approx(few["mean"])
        assert row["speed"] > 0
    assert len({row["speed"] for row in said["models"]}) == 1  # of one architecture
    assert said["shots"] == 5
    page = Path("choice.html").read_text()
    assert "<svg" not in page
    assert "data:image/svg+xml" in page
    assert said["recommended"] in page


def test_cached_weights_of_the_catalog_are_at_hand(place: Path) -> None:
    assert weights_at_hand() == []
    file = place / "cache/google/vit_models/imagenet21k/ViT-B_16.npz"
    other = place / "cache/dinov2/dinov2_vits14/dinov2_vits14_reg4_pretrain.pth"
    for path in (file, other):
        path.parent.mkdir(parents=True)
        path.write_bytes(b"")
    sources = [each.source for each in weights_at_hand()]
    assert sources == ["google:imagenet21k/ViT-B_16", "dinov2:vits14_reg"]


def test_weights_for_research_only_are_not_free() -> None:
    mae, vit = find("timm:vit_base_patch16_224.mae"), CATALOG[0]
    assert mae is not None
    assert (is_free(mae), is_free(vit)) == (False, True)


def test_bad_input_is_one_line_and_writes_nothing(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = sorted(place.glob("photos/**/*.png"))
    rows = [f"{file},{number}" for number, file in enumerate(files)]
    (place / "numbers.csv").write_text("\n".join(["path,age", *rows, ""]))
    before = sorted(path.name for path in place.iterdir())
    for arguments, said in (
        (("photos",), "no backbone was downloaded"),
        (("photos", "--among", "one", "--out", "page.txt"), "such as choice.html"),
        (("photos", "--among", "nothing"), "nothing"),
        (("nothing", "--among", "one"), "nothing"),
        (("photos", "--among", "one", "--test", "extra"), "has no split 'extra'"),
        (("csv:numbers.csv,targets=age", "--among", "one"), "has numbers per image; expected one"),
    ):
        code, out, err = run(capsys, "choose", *arguments)
        assert (code, out) == (2, "")
        assert said in err
        assert err.count("\n") == 1
    assert sorted(path.name for path in place.iterdir()) == before
