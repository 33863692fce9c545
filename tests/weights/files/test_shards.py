"""Weights in several files: the same as in one, or refused in one line."""

import json
from pathlib import Path

import pytest
import torch

from tests.parity import peers
from tests.parity.transformers_tiny import TINY, make
from vitrail.config import InputError
from vitrail.weights.load import read_checkpoint

hf = peers.load("transformers")
INDEX = "model.safetensors.index.json"


def save(folder: Path, **options: str) -> Path:
    make("ViTForImageClassification", TINY).save_pretrained(folder, **options)
    return folder


def test_shards_are_one_model(tmp_path: Path) -> None:
    whole, parts = save(tmp_path / "whole"), save(tmp_path / "parts", max_shard_size="30KB")
    assert len(list(parts.glob("model-*.safetensors"))) > 2
    one = read_checkpoint(str(whole))
    for source in (parts, parts / INDEX):
        several = read_checkpoint(str(source))
        assert several.spec == one.spec
        assert several.tensors.keys() == one.tensors.keys()
        assert all(torch.equal(several.tensors[key], one.tensors[key]) for key in one.tensors)
    assert several.provenance is not None
    assert len(several.provenance.sha256) == 64


def test_a_hash_is_of_all_shards(tmp_path: Path) -> None:
    folder = save(tmp_path / "parts", max_shard_size="30KB")
    before = read_checkpoint(str(folder)).provenance
    last = max(folder.glob("model-*.safetensors"))
    data = bytearray(last.read_bytes())
    data[-1] ^= 1
    last.write_bytes(bytes(data))
    after = read_checkpoint(str(folder)).provenance
    assert before is not None
    assert after is not None
    assert before.sha256 != after.sha256


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    folder = save(tmp_path / "parts", max_shard_size="30KB")
    lost = sorted(folder.glob("model-*.safetensors"))[1]
    lost.unlink()
    with pytest.raises(InputError, match=f"lists {lost.name}, which is missing") as caught:
        read_checkpoint(str(folder))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ("{", "Expecting property name"),
        ("[]", "expected files by the names of tensors in weight_map"),
        ({"weight_map": {}}, "expected files by the names of tensors"),
        ({"weight_map": {"a": "../other.safetensors"}}, "is not a safetensors file beside it"),
        ({"weight_map": {"a": "weights.bin"}}, "is not a safetensors file beside it"),
        ({"weight_map": {"a": 3}}, "is not a safetensors file beside it"),
        ({"weight_map": {"no.such": "model-00001.safetensors"}}, "has no 'no.such'"),
    ],
)
def test_a_wrong_index_is_refused(index: object, message: str, tmp_path: Path) -> None:
    save(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "model-00001.safetensors")
    text = index if isinstance(index, str) else json.dumps(index)
    (tmp_path / INDEX).write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        read_checkpoint(str(tmp_path))
    assert "\n" not in str(caught.value)
