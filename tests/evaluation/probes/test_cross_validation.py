"""Cross-validation: each image once, groups whole, the mean with Student's interval."""

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import t

import vitrail
from tests.evaluation.sets import save_tiny, write_images
from vitrail.cli import main
from vitrail.evaluation.probes.cross_validation import CrossValidation


def test_the_mean_has_students_interval() -> None:
    folds = (0.8, 0.9, 0.85, 0.7)
    found = CrossValidation(model="m", data="d", images=40, groups=None, folds=folds).top1
    low, high = t.interval(0.95, 3, np.mean(folds), np.std(folds, ddof=1) / 2)
    assert tuple(found) == pytest.approx((np.mean(folds), low, high), rel=1e-9)


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
