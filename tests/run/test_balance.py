"""Runs on uneven classes: what balancing changes, and that a restart does not."""

from pathlib import Path

import numpy as np
import pytest

from tests.faults.toy import fail_at, print_of, steps, toy
from tests.runs import train
from vitrail.data.dataset import ImageDataset, select
from vitrail.data.datasets.open import open_dataset


def uneven_digits() -> dict[str, ImageDataset]:
    """Take 40 images of digit 0, and 2 of each other."""
    whole = open_dataset("digits", split="train")
    kept = [np.flatnonzero(whole.labels == n)[: 40 if n == 0 else 2] for n in range(10)]
    return {
        "train": select(whole, np.concatenate(kept)),
        "val": open_dataset("digits", split="test"),
    }


@pytest.mark.parametrize(("balance", "said"), [("auto", "balance auto: weights: the largest class, "
    "'0', has 40 images, the smallest, '1', 2 (20.0 to 1); the loss is weighted"),
    ("sampling", "each class is drawn equally often")])  # fmt: skip
def test_a_balanced_run_says_so_and_resumes_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, balance: str, said: str
) -> None:
    data = uneven_digits()
    settings = {"length": steps(4), "batch": 8, "balance": balance, "save_every": steps(1)}
    whole = train(toy(tmp_path / "whole", **settings), data=data)
    assert said in (tmp_path / "whole" / "log.txt").read_text()
    assert whole.macro_accuracy is not None
    plain = train(toy(tmp_path / "plain", **{**settings, "balance": "none"}), data=data)
    assert plain.loss != whole.loss
    with monkeypatch.context() as patch:
        fail_at(patch, 2)
        with pytest.raises(ZeroDivisionError):
            train(toy(tmp_path / "stopped", **settings), data=data)
    train(toy(tmp_path / "stopped", **settings), data=data)
    assert print_of(tmp_path / "stopped") == print_of(tmp_path / "whole")
