"""Features larger than memory: the same values block by block, within a bound of memory."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from tests.evaluation.probes.problems import problem
from vitrail.config import InputError
from vitrail.evaluation.cleaning.label_errors import (
    cross_validate_probabilities,
    find_label_errors,
)
from vitrail.evaluation.cleaning.outlying import neighbor_distances
from vitrail.evaluation.features import mapped_rows as room
from vitrail.evaluation.features import neighbors
from vitrail.evaluation.features.feature_files import write_features
from vitrail.evaluation.features.mapped_rows import RowWriter, StandardizedRows, take_rows
from vitrail.evaluation.probes.knn import classify_by_neighbors
from vitrail.evaluation.probes.linear_probe import probe_lbfgs, probe_sgd
from vitrail.evaluation.probes.probe_model import calibrate_head


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold nothing in memory, and take blocks of few rows."""
    monkeypatch.setattr(room, "HELD", 0)
    monkeypatch.setattr(room, "_BLOCK", 2000)
    monkeypatch.setattr(neighbors, "_REFERENCES", 37)
    monkeypatch.setattr(neighbors, "_ROWS", 11)


@pytest.mark.usefixtures("small")
def test_rows_are_written_and_mapped_as_they_came() -> None:
    rows = np.random.default_rng(0).normal(size=(50, 6)).astype(np.float32)
    writer = RowWriter()
    for part in np.split(rows, [1, 20, 20, 47]):
        writer.add(part)
    found = writer.finish()
    np.testing.assert_array_equal(found, rows)
    chosen = torch.tensor([3, 49, 3, 0])
    np.testing.assert_array_equal(take_rows(torch.from_numpy(found), chosen), rows[chosen])
    scaled = StandardizedRows(torch.from_numpy(found))
    expected = (rows.astype(float) - rows.mean(0, dtype=float)) / rows.std(0, dtype=float)
    np.testing.assert_allclose(scaled[torch.arange(50)], expected, rtol=1e-12)
    np.testing.assert_allclose(scaled.only(chosen)[1:3], expected[[49, 3]], rtol=1e-12)


def test_a_full_disk_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(room, "HELD", 0)
    monkeypatch.setattr(room.tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(InputError, match=r"features can't be written.*set TMPDIR"):
        RowWriter().add(np.ones((2, 3), np.float32))


def test_blocks_give_what_the_whole_gives(request: pytest.FixtureRequest) -> None:
    train, test = problem(3, shots=30, classes=4, width=12, noise=3.0)

    def everything() -> list[np.ndarray]:
        knn = classify_by_neighbors(train, test, k=(1, 5, 20))
        assert knn.held_out is not None
        lbfgs, sgd = probe_lbfgs(train, test), probe_sgd(train, test, epochs=3)
        head, _ = calibrate_head(lbfgs.head, train, None, lbfgs.fit, 0)
        blocks = cross_validate_probabilities(train.values, train.labels, 4)
        errors = find_label_errors(blocks, train.labels, 4)
        found = [knn.accuracy, knn.held_out, lbfgs.held_out, lbfgs.head.weight.numpy()]
        found += [np.array([lbfgs.accuracy, sgd.accuracy]), sgd.held_out, head.weight.numpy()]
        found += [errors.rows, errors.chance, np.array(errors.joint)]
        return [*found, neighbor_distances(train.values)]

    whole = everything()
    request.getfixturevalue("small")
    for one, other in zip(whole, everything(), strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-6)


def test_one_k_needs_no_images_to_choose_it() -> None:
    train, test = problem(2, shots=20, classes=4, width=12, noise=3.0)
    several = classify_by_neighbors(train, test, k=(1, 5))
    one = classify_by_neighbors(train, test, k=(5,))
    assert one.held_out is None
    assert one.best == 0
    assert one.accuracy[0] == several.accuracy[1]
    lone = [np.flatnonzero(train.labels == number)[0] for number in range(4)]
    few = replace(
        train, values=train.values[lone], labels=train.labels[lone], names=train.names[lone]
    )
    assert 0 < classify_by_neighbors(few, test, k=(1,)).accuracy[0] < 1


@pytest.mark.parametrize("several", [False, True])
def test_files_are_those_of_the_libraries(tmp_path: Path, several: bool) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    features, _ = problem(1, shots=5, classes=3, width=4)
    if several:
        labels = np.eye(3, dtype=np.float32)[features.labels]
        features = replace(features, labels=labels)
    write_features(features, tmp_path / "ours.safetensors", {"model": "Vit"})
    arrays = {"features": features.values, "labels": features.labels}
    save_file(arrays, tmp_path / "theirs.safetensors", {"vitrail": '{"model": "Vit"}'})
    ours, theirs = ((tmp_path / f"{who}.safetensors").read_bytes() for who in ("ours", "theirs"))
    assert ours == theirs
    write_features(features, tmp_path / "ours.parquet", {"model": "Vit"})
    table = parquet.read_table(tmp_path / "ours.parquet")
    assert table["features"].to_pylist() == features.values.tolist()
    assert table["name"].to_pylist() == features.names.tolist()
    expected = [[n] for n in features.labels.argmax(1)] if several else features.labels.tolist()
    assert table["label"].to_pylist() == expected
    assert pa.types.is_fixed_size_list(table["features"].type)


MADE = """
import resource, sys
import numpy as np, torch
from vitrail.evaluation.features import mapped_rows
from vitrail.evaluation.features.image_features import Features
from vitrail.evaluation.features.feature_files import write_features
from vitrail.evaluation.cleaning.label_errors import (
    cross_validate_probabilities, find_label_errors,
)
from vitrail.evaluation.probes.fewshot import fit_shots
from vitrail.evaluation.probes.knn import classify_by_neighbors
from vitrail.evaluation.probes import linear_probe
from vitrail.evaluation.probes.linear_probe import probe_lbfgs, probe_sgd
from vitrail.evaluation.probes.probe_model import calibrate_head

mapped_rows.HELD, mapped_rows._BLOCK = 2**20, 2**20
linear_probe._STEPS = 5
images, width, classes = 40_000, 512, 4  # 82 MB, and twice that in float64
labels = np.arange(images) % classes
rng, writer = np.random.default_rng(0), mapped_rows.RowWriter()
centers = rng.normal(size=(classes, width))
for rows in mapped_rows.split_rows(images, width):
    made = rng.normal(size=(len(labels[rows]), width)) + centers[labels[rows]]
    writer.add(made.astype(np.float32))

def used():  # MB of private memory; the mapped file is not among it
    lines = dict(line.split(":") for line in open("/proc/self/status"))
    return int(lines["VmData"].split()[0]) // 1024

def work(values, labels):
    names = np.array([str(n) for n in range(len(labels))])
    train = Features(name="made", classes=("a", "b", "c", "d"), values=values, labels=labels,
                     names=names)
    some = slice(0, 400)
    test = Features(name="some", classes=train.classes, values=values[some], labels=labels[some],
                    names=names[some])
    assert classify_by_neighbors(train, test, k=(1,)).accuracy[0] == 1
    assert fit_shots(train, test, shots=[5], seeds=1)[0].accuracy.mean() > 0.9
    found = probe_sgd(train, test, rates=[0.01], epochs=1)
    assert found.accuracy > 0.9
    assert probe_lbfgs(train, test, decays=[10.0]).accuracy > 0.9
    calibrate_head(found.head, train, None, found.fit, 0)
    blocks = cross_validate_probabilities(values, labels, classes, folds=2)
    assert len(find_label_errors(blocks, labels, classes).rows) < 100
    for suffix in (".npy", ".parquet", ".safetensors"):
        write_features(train, __import__("pathlib").Path("out" + suffix), {"model": "m"})

values = writer.finish()
neighbors = sys.modules["vitrail.evaluation.features.neighbors"]
neighbors._REFERENCES = 4096
work(values[:4000].copy(), labels[:4000])  # what the libraries themselves take
resource.setrlimit(resource.RLIMIT_DATA, ((used() + 60) * 2**20,) * 2)
work(values, labels)
print("done")
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, and limits private memory")
def test_memory_is_bounded(tmp_path: Path) -> None:
    """A copy of the features (82 MB) would exceed the limit of 60 MB, and end in a MemoryError."""
    pytest.importorskip("pyarrow")
    alone = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
    options = {"cwd": tmp_path, "env": alone, "capture_output": True, "text": True}
    ran = subprocess.run([sys.executable, "-c", MADE], check=False, **options)
    assert ran.stdout == "done\n", ran.stderr
