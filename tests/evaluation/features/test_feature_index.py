"""An index gives the nearest images by brute force, and damaged files are refused."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.shelf import refusal
from vitrail.evaluation.features.feature_files import write_features
from vitrail.evaluation.features.feature_index import read_index
from vitrail.evaluation.features.image_features import Features

FACTS = {"model": "m", "data": "d", "split": "all", "features": "pre-logits", "weights": "w"}


def some(count: int = 200, *, several: bool = False) -> Features:
    draw = np.random.default_rng(0)
    labels = draw.integers(0, 2, (count, 3)).astype(np.uint8) if several else None
    return Features(
        name="set",
        classes=("a", "b, c", "d"),
        values=(draw.normal(size=(count, 12)) * draw.uniform(0.1, 9, (count, 1))).astype("f4"),
        labels=draw.integers(0, 3, count) if labels is None else labels,
        names=np.array([f"x/{number}.png" for number in range(count)]),
    )


@pytest.mark.parametrize("name", ["f.parquet", "f.safetensors"])
@pytest.mark.parametrize("several", [False, True])
def test_the_nearest_are_brute_forces(tmp_path: Path, name: str, several: bool) -> None:
    features = some(several=several)
    features.values[7] = 0  # has no direction: it is like nothing, and like NaN least of all
    write_features(features, tmp_path / name, FACTS)
    index = read_index(tmp_path / name)
    queries = np.random.default_rng(1).normal(size=(5, 12)).astype(np.float32)
    cosines, rows = index.nearest(torch.from_numpy(queries), 9)
    lengths = np.maximum(np.linalg.norm(features.values, axis=1), 1e-12)
    exact = queries @ features.values.T.astype(np.float64)
    exact /= np.linalg.norm(queries, axis=1)[:, None] * lengths
    order = np.argsort(-exact, axis=1)[:, :9]
    np.testing.assert_array_equal(rows, order)
    np.testing.assert_allclose(cosines, np.take_along_axis(exact, order, 1), atol=1e-6)
    assert index.facts == FACTS
    assert list(index.names) == features.names.tolist()
    rows_of = features.labels if several else np.eye(3, dtype=int)[features.labels]
    assert list(index.labels) == [
        "|".join(features.classes[n] for n in np.flatnonzero(row)) for row in rows_of
    ]
    cosines, rows = index.nearest(torch.from_numpy(features.values[:1]), 10**9)
    assert (rows.shape, rows[0, 0]) == ((1, 200), 0)
    assert 1 - 1e-6 < cosines.max() <= 1


def test_files_of_no_use_are_refused(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    def refuse(name: str) -> str:
        return refusal(read_index, tmp_path / name)

    assert "expected FILE.safetensors or FILE.parquet" in refuse("f.npy")
    assert "no file" in refuse("f.parquet")
    for name in ("f.parquet", "f.safetensors"):
        path = tmp_path / name
        write_features(some(), path, FACTS)
        whole = path.read_bytes()
        for damaged in (whole[:-40], whole[: len(whole) // 2], b"", b"x" * 100):
            path.write_bytes(damaged)
            assert "is damaged, or vitrail embed did not write it: " in refuse(name)
        write_features(some(), path, {"model": "m", "data": "d"})
        assert "does not say its features and split and weights" in refuse(name)
    said = {"vitrail": json.dumps(FACTS)}
    values = some().values
    for array, text in (
        (values[:0], "holds no images"),
        (values[:3], "has names for 200 of 3"),
        (np.where(values > 5, np.nan, values), "NaN or infinite"),
        (values.astype(np.float16), "expected rows of float32, got torch.float16"),
    ):
        save_file({"features": array}, tmp_path / "f.safetensors", said)
        if not len(array):
            (tmp_path / "f.rows.csv").write_text("name,label,class\n")
        assert text in refuse("f.safetensors")
        write_features(some(), tmp_path / "f.safetensors", FACTS)
    (tmp_path / "f.rows.csv").unlink()
    assert "f.rows.csv is missing" in refuse("f.safetensors")
