"""Cross-validation: each image once, groups whole, the accuracy on all of them."""

from pathlib import Path

import pytest
from scipy.stats import binomtest

import vitrail
from tests.evaluation.sets import save_tiny, write_images
from vitrail.cli import main
from vitrail.evaluation.probes.cross_validation import CrossValidation


def test_the_accuracy_is_of_all_images() -> None:
    """Ten of ten, nine of ten, nine of nine: 28 of 29, with the interval that SciPy has for it."""
    words = {"model": "m", "data": "d", "images": 29, "folds": (1.0, 0.9, 1.0)}
    found = CrossValidation(**words, groups=None, sizes=(10, 10, 9)).top1
    peer = binomtest(28, 29).proportion_ci(method="wilson")
    assert tuple(found) == pytest.approx((28 / 29, peer.low, peer.high))
    whole = CrossValidation(**words, groups=12, sizes=(10, 10, 9)).top1  # images may be alike
    assert whole.low < found.low
    assert whole.high == 1


def test_copies_in_one_group_do_not_flatter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Noise that is there four times is recognized by its copies, unless they share a fold."""
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    model, photos = save_tiny(tmp_path / "tiny"), write_images(tmp_path / "photos", broken=False)
    for path in sorted(photos.rglob("*.png")):
        for copy in "xyz":
            path.with_name(f"{path.stem}{copy}.png").write_bytes(path.read_bytes())
    torn = vitrail.cross_validate(model, photos, folds=4)
    whole = vitrail.cross_validate(model, photos, folds=4, group=r"(./\d)")
    assert (torn.images, whole.images, whole.groups) == (52, 52, 13)
    assert torn.top1.value > 0.9
    assert whole.top1.value < 0.7


@pytest.mark.parametrize(
    ("flags", "said"),
    [(["--folds", "1"], "expected 2 or more"), (["--group", "("], "not a regular expression"),
     (["--group", "z9"], "does not match"), (["--seed", "-1"], "--seed must be at least 0, got -1"),
     (["--folds", "14"], "--folds 14: there are only 13 images"),
     (["--folds", "99999999999999999999"], "there are only 13 images")],
)  # fmt: skip
def test_bad_flags_are_one_line(
    tmp_path: Path, flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model, photos = save_tiny(tmp_path / "tiny"), write_images(tmp_path / "photos")
    with pytest.raises(SystemExit) as stop:
        main(["cross-validate", str(model), str(photos), *flags])
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
