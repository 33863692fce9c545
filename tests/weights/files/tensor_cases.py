"""Files of tensors, good and bad."""

import zipfile
from pathlib import Path

import pytest
import torch
from torch import Tensor

from vitrail.config import InputError
from vitrail.weights.files.tensor_files import open_weights


def tensors(dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    return {
        "b.weight": torch.arange(12).reshape(3, 4).to(dtype),
        "a": torch.tensor(7).to(dtype),
        "empty": torch.zeros(0, 3, dtype=dtype),
    }


def check(path: Path, expected: dict[str, Tensor]) -> None:
    file = open_weights(path)
    assert file.shapes == {name: tuple(tensor.shape) for name, tensor in expected.items()}
    assert file.dtypes == {name: tensor.dtype for name, tensor in expected.items()}
    read = file.read()
    assert read.keys() == expected.keys()
    for name, tensor in expected.items():
        assert read[name].dtype == tensor.dtype
        assert torch.equal(read[name], tensor)


def says(path: Path, *words: str) -> None:
    """Check that a file is refused in one line that names it and says these words."""
    with pytest.raises(InputError) as caught:
        open_weights(path).read()
    text = str(caught.value)
    assert text.startswith(str(path))
    assert "\n" not in text
    for word in words:
        assert word in text, text


def make_zip(path: Path, members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path
