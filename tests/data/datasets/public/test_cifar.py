"""CIFAR's binary files: tiny ones in the official layouts, damaged ones, and what is no CIFAR."""

from pathlib import Path

import numpy as np
import pytest

from tests.shelf import refusal
from vitrail.data.dataset import ArrayDataset
from vitrail.data.datasets.public.cifar import open_cifar10, open_cifar100

NAMES10 = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
RNG = np.random.default_rng(0)


def records(labels: np.ndarray, pixels: np.ndarray) -> bytes:
    """Write records byte by byte, as the page of CIFAR tells it."""
    out = bytearray()
    for label, image in zip(labels, pixels, strict=True):
        out += bytes(np.atleast_1d(label).tolist())
        for channel in range(3):
            for row in range(32):
                out += bytes(image[row, :, channel].tolist())
    return bytes(out)


def write10(folder: Path, count: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Write the six files, and give all labels and pixels."""
    folder.mkdir(parents=True, exist_ok=True)
    labels = RNG.integers(0, 10, (6, count), np.uint8)
    pixels = RNG.integers(0, 256, (6, count, 32, 32, 3), np.uint8)
    files = [f"data_batch_{number}.bin" for number in range(1, 6)] + ["test_batch.bin"]
    for file, some, images in zip(files, labels, pixels, strict=True):
        (folder / file).write_bytes(records(some, images))
    (folder / "batches.meta.txt").write_text("\n".join(NAMES10) + "\n\n")
    return labels.reshape(-1), pixels.reshape(-1, 32, 32, 3)


def write100(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    folder.mkdir(parents=True)
    labels = np.stack([RNG.integers(0, 20, 5), RNG.integers(0, 100, 5)], 1)
    pixels = RNG.integers(0, 256, (5, 32, 32, 3), np.uint8)
    (folder / "train.bin").write_bytes(records(labels[:3], pixels[:3]))
    (folder / "test.bin").write_bytes(records(labels[3:], pixels[3:]))
    (folder / "fine_label_names.txt").write_text("".join(f"class_{i}\n" for i in range(100)))
    return labels[:, 1], pixels


@pytest.mark.parametrize(
    ("split", "part"), [("train", slice(15)), ("test", slice(15, 18)), ("all", slice(18))]
)
@pytest.mark.parametrize("below", [True, False])
def test_cifar10(tmp_path: Path, split: str, part: slice, below: bool) -> None:
    labels, pixels = write10(tmp_path / "cifar-10-batches-bin")
    dataset = open_cifar10(tmp_path if below else tmp_path / "cifar-10-batches-bin", split)
    assert isinstance(dataset, ArrayDataset)
    assert dataset.classes == tuple(NAMES10)
    np.testing.assert_array_equal(dataset.labels, labels[part])
    np.testing.assert_array_equal(dataset.pixels, pixels[part])
    assert dataset.where(0) == f"cifar10/{split}[0]"


@pytest.mark.parametrize(
    ("split", "part"), [("train", slice(3)), ("val", slice(3, 5)), ("all", slice(5))]
)
def test_cifar100_has_its_fine_labels(tmp_path: Path, split: str, part: slice) -> None:
    labels, pixels = write100(tmp_path / "cifar-100-binary")
    dataset = open_cifar100(tmp_path, split)
    assert isinstance(dataset, ArrayDataset)
    assert dataset.classes[37] == "class_37"
    np.testing.assert_array_equal(dataset.labels, labels[part])
    np.testing.assert_array_equal(dataset.pixels, pixels[part])


def test_validation_is_the_test_split(tmp_path: Path) -> None:
    write10(tmp_path)
    assert open_cifar10(tmp_path, "val").name == "cifar10/test"
    assert "it has train, test, all" in refusal(open_cifar10, tmp_path, "dev")


def test_damaged_files(tmp_path: Path) -> None:
    write10(tmp_path)
    file = tmp_path / "data_batch_4.bin"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    told = f"{file}: expected records of 3,073 bytes, got 9,218 bytes"
    assert told in refusal(open_cifar10, tmp_path, "train")
    assert len(open_cifar10(tmp_path, "test")) == 3  # the other files are whole
    file.write_bytes(b"")
    assert "got 0 bytes" in refusal(open_cifar10, tmp_path, "train")
    file.write_bytes(whole[:3073] + b"\x0a" + whole[3074:])
    told = f"{file}: record 1 has the label 10, expected 0 to 9"
    assert told in refusal(open_cifar10, tmp_path, "all")
    file.unlink()
    assert f"{file}: No such file" in refusal(open_cifar10, tmp_path, "train")


@pytest.mark.parametrize(
    ("names", "count"), [(b"a\nb\n", 2), (b"cat\n" * 10, 1), (b"\xff\xfe", 1), (b"", 0)]
)
def test_class_names_that_are_none(tmp_path: Path, names: bytes, count: int) -> None:
    write10(tmp_path)
    file = tmp_path / "batches.meta.txt"
    file.write_bytes(names)
    told = f"{file}: expected the names of 10 classes, got {count}"
    assert told in refusal(open_cifar10, tmp_path, "test")
    file.unlink()
    assert f"{file}: No such file" in refusal(open_cifar10, tmp_path, "test")


def test_what_is_no_binary_cifar(tmp_path: Path) -> None:
    text = refusal(open_cifar100, tmp_path, "test")
    assert "found no test.bin, nor cifar-100-binary/test.bin; unpack cifar-100-binary" in text
    archive = tmp_path / "cifar-10-binary.tar.gz"
    archive.touch()
    assert "unpack cifar-10-binary.tar.gz and give" in refusal(open_cifar10, archive, "test")
    python = tmp_path / "cifar-10-batches-py"
    python.mkdir()
    (python / "data_batch_1").touch()
    for folder in (python, tmp_path):
        text = refusal(open_cifar10, folder, "test")
        assert "is the Python version, whose pickles may run code; take cifar-10-binary" in text
