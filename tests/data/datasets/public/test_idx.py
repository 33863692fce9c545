"""The idx files of MNIST and Fashion-MNIST: tiny ones under their usual names, and damaged ones."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from tests.shelf import refusal
from vitrail.data.dataset import ArrayDataset
from vitrail.data.datasets.public.idx import open_idx

RNG = np.random.default_rng(0)


def idx(array: np.ndarray) -> bytes:
    head = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.tobytes()


def write(folder: Path, mark: str = "-", packed: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """Write four files of five training and three test images; give all labels and pixels."""
    labels = RNG.integers(0, 10, 8, np.uint8)
    pixels = RNG.integers(0, 256, (8, 28, 28), np.uint8)
    for stem, part in (("train", slice(5)), ("t10k", slice(5, 8))):
        for kind, array in (("labels", labels[part]), ("images", pixels[part])):
            name = f"{stem}-{kind}{mark}idx{array.ndim}-ubyte"
            content = idx(array)
            if packed:
                (folder / f"{name}.gz").write_bytes(gzip.compress(content))
            else:
                (folder / name).write_bytes(content)
    return labels, pixels


@pytest.mark.parametrize("mark", ["-", "."])
@pytest.mark.parametrize("packed", [True, False])
def test_all_usual_names(tmp_path: Path, mark: str, packed: bool) -> None:
    labels, pixels = write(tmp_path, mark, packed)
    parts = {"train": slice(5), "test": slice(5, 8), "val": slice(5, 8), "all": slice(8)}
    for split, part in parts.items():
        dataset = open_idx(tmp_path, split, "mnist")
        assert isinstance(dataset, ArrayDataset)
        np.testing.assert_array_equal(dataset.labels, labels[part])
        np.testing.assert_array_equal(dataset.pixels, pixels[part, :, :, None])
        assert dataset.where(1) == f"mnist/{split.replace('val', 'test')}[1]"


def test_class_names(tmp_path: Path) -> None:
    write(tmp_path)
    assert open_idx(tmp_path, "test", "mnist").classes == tuple("0123456789")
    clothes = open_idx(tmp_path, "test", "fashion-mnist").classes
    assert (clothes[0], clothes[9], len(clothes)) == ("T-shirt/top", "Ankle boot", 10)
    assert "did you mean 'mnist'" in refusal(open_idx, tmp_path, "test", "minst")
    assert "it has train, test, all" in refusal(open_idx, tmp_path, "valid", "mnist")


def test_missing_file(tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").unlink()
    told = f"{tmp_path}: found no t10k-labels-idx1-ubyte.gz, nor t10k-labels-idx1-ubyte"
    assert told in refusal(open_idx, tmp_path, "test", "mnist")
    assert len(open_idx(tmp_path, "train", "mnist")) == 5


PIXELS = np.zeros((3, 28, 28), np.uint8)
MANY = bytes((0, 0, 8, 3)) + struct.pack(">3I", 2**32 - 1, 28, 28)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (idx(PIXELS)[:-1], "expected 2,352 bytes of 3 items"),
        (idx(PIXELS) + b"\0", "expected 2,352 bytes of 3 items"),
        (MANY, "4,294,967,295 items do not fit in its"),
        (idx(PIXELS[:0]), "0 items do not fit"),
        (idx(PIXELS[:, :27]), r"expected images of 28 x 28, got (27, 28)"),
        (idx(PIXELS[:, 0, 0]), "expected an idx3 file of bytes"),
        (b"", "expected an idx3 file of bytes"),
        (idx(PIXELS[:2]), "3 labels for 2 images of t10k-images-idx3-ubyte"),
    ],
)
@pytest.mark.parametrize("packed", [True, False])
def test_damaged_images(tmp_path: Path, content: bytes, told: str, packed: bool) -> None:
    write(tmp_path, packed=packed)
    file = tmp_path / f"t10k-images-idx3-ubyte{'.gz' if packed else ''}"
    file.write_bytes(gzip.compress(content) if packed else content)
    assert told in refusal(open_idx, tmp_path, "test", "mnist")


def test_damaged_packing(tmp_path: Path) -> None:
    write(tmp_path)
    file = tmp_path / "train-images-idx3-ubyte.gz"
    whole = file.read_bytes()
    for content in (whole[:-20], whole[:200] + b"\xff" * 9 + whole[209:], b"no gzip at all"):
        file.write_bytes(content)
        assert f"{file}: " in refusal(open_idx, tmp_path, "train", "mnist")


def test_label_beyond_the_classes(tmp_path: Path) -> None:
    write(tmp_path, packed=False)
    file = tmp_path / "t10k-labels-idx1-ubyte"
    file.write_bytes(idx(np.array([1, 10, 3], np.uint8)))
    told = f"{file}: expected labels of 0 to 9, got 10"
    assert told in refusal(open_idx, tmp_path, "all", "fashion-mnist")
