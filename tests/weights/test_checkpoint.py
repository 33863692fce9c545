"""Our model folder: it gives back what was saved, and replaces nothing else."""

import json
import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from tests.weights.checkpoints import SMALL, equal, make_checkpoint, same
from vitrail.config import InputError
from vitrail.models import BiTSpec, HybridSpec, Spec, build
from vitrail.weights import model_folder
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.load import load
from vitrail.weights.model_folder import load_folder, save_folder

SPECS: list[Spec] = [
    replace(SMALL, depth=2, pool="map", registers=2, layer_scale=0.1),
    replace(SMALL, position="sincos-2d", pool="gap"),
    replace(SMALL, position="relative", position_at="shared"),
    HybridSpec(depth=1, width=8, heads=2, mlp=16, image=(32, 32), stages=(1,), stem_width=32),
    BiTSpec(stages=(1, 1), width=32, image=(32, 32), classes=2),
]


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_round_trip(tmp_path: Path, spec: Spec) -> None:
    saved = make_checkpoint(spec)
    save_folder(saved, tmp_path / "a" / "model")
    read = load_folder(tmp_path / "a" / "model")
    assert same(saved, read)
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["model"]
    model = read.build()
    assert not model.training
    assert {p.device.type for p in [*model.parameters(), *model.buffers()]} == {"cpu"}
    assert all(p.requires_grad for p in model.parameters())
    assert model.spec == spec
    images = torch.randn(1, 3, *spec.image)
    plain = build(spec).eval()
    plain.load_state_dict(saved.tensors)
    assert torch.equal(model(images), plain(images))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_precision_is_kept(tmp_path: Path, dtype: torch.dtype) -> None:
    save_folder(make_checkpoint(dtype=dtype), tmp_path / "m")
    assert same(make_checkpoint(dtype=dtype), load_folder(tmp_path / "m"))
    assert {p.dtype for p in load_folder(tmp_path / "m").build().parameters()} == {dtype}


def test_nothing_but_the_weights_is_needed(tmp_path: Path) -> None:
    bare = Checkpoint(spec=SMALL, tensors=make_checkpoint().tensors)
    save_folder(bare, tmp_path / "m")
    assert same(bare, load_folder(tmp_path / "m"))


def test_activation_and_thresholds_travel_with_the_weights(tmp_path: Path) -> None:
    levels = tuple((i + 1) / (SMALL.classes + 1) for i in range(SMALL.classes))
    saved = replace(make_checkpoint(), activation="sigmoid", thresholds=levels)
    save_folder(saved, tmp_path / "m")
    assert same(saved, load_folder(tmp_path / "m"))
    loaded = load(str(tmp_path / "m"))
    assert (loaded.activation, loaded.thresholds) == ("sigmoid", levels)
    resized = load(str(tmp_path / "m"), image=(2 * SMALL.image[0], 2 * SMALL.image[1]))
    assert (resized.activation, resized.thresholds) == ("sigmoid", levels)
    other = load(str(tmp_path / "m"), classes=3)  # a new head is no longer what they are of
    assert (other.activation, other.thresholds) == ("softmax", None)


@pytest.mark.parametrize(
    ("activation", "thresholds", "message"),
    [
        ("softmax", (0.5,) * SMALL.classes, "thresholds require the activation sigmoid"),
        ("sigmoid", (0.5,), f"expected {SMALL.classes} thresholds"),
        ("sigmoid", (1.5,) * SMALL.classes, r"thresholds in \[0, 1\]"),
    ],
)
def test_thresholds_that_fit_no_model_are_refused(
    tmp_path: Path, activation: Any, thresholds: tuple[float, ...], message: str
) -> None:
    wrong = replace(make_checkpoint(), activation=activation, thresholds=thresholds)
    with pytest.raises(InputError, match=message):
        save_folder(wrong, tmp_path / "m")


def test_anybody_can_read_the_files(tmp_path: Path) -> None:
    save_folder(make_checkpoint(), tmp_path / "m")
    weights, record = tmp_path / "m" / "model.safetensors", tmp_path / "m" / "model.json"
    assert equal(load_file(weights), make_checkpoint().tensors)
    with safe_open(weights, "pt") as file:
        assert file.metadata() == {"format": "pt"}
    data = json.loads(record.read_text())
    assert (data["version"], data["name"]) == (1, str(SMALL))
    assert data["spec"]["family"] == "vit"
    assert data["parameters"] == sum(
        tensor.numel() for tensor in make_checkpoint().tensors.values()
    )
    mask = os.umask(0)
    os.umask(mask)
    for path in (weights, record):
        assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask
    assert stat.S_IMODE(weights.parent.stat().st_mode) == 0o777 & ~mask


def test_shared_and_turned_tensors_are_saved_as_their_own(tmp_path: Path) -> None:
    made = make_checkpoint()
    memory = torch.randn(200)
    tensors = dict(made.tensors)
    tensors["norm.weight"] = tensors["norm.bias"] = memory[:8]
    tensors["head.output.weight"] = memory[4:20].view(2, 8)
    tensors["blocks.0.mlp.hidden.weight"] = torch.randn(8, 16).T
    save_folder(replace(made, tensors=tensors), tmp_path / "m")
    assert equal(load_folder(tmp_path / "m").tensors, tensors)


def test_a_model_can_be_trained_from_a_mapped_folder_and_saved_over_it(tmp_path: Path) -> None:
    save_folder(make_checkpoint(), tmp_path / "m")
    read = load_folder(tmp_path / "m")
    model = read.build()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    assert same(make_checkpoint(), load_folder(tmp_path / "m"))
    save_folder(replace(read, tensors=model.state_dict()), tmp_path / "m")
    shifted = {name: tensor + 1 for name, tensor in make_checkpoint().tensors.items()}
    assert equal(load_folder(tmp_path / "m").tensors, shifted)


def test_all_misfits_are_said_at_once(tmp_path: Path) -> None:
    tensors = dict(make_checkpoint().tensors)
    del tensors["norm.bias"]
    tensors["norm.weight"] = torch.ones(9)
    tensors["head.output.bias"] = torch.ones(2, dtype=torch.long)
    tensors["other"] = torch.ones(1)
    wrong = replace(make_checkpoint(), tensors=tensors)
    with pytest.raises(InputError) as caught:
        wrong.build()
    for text in ("missing norm.bias (8,)", "norm.weight has shape (9,), expected (8,)",
                 "head.output.bias holds torch.int64", "unknown 'other'"):  # fmt: skip
        assert text in str(caught.value)
    with pytest.raises(InputError, match=r"norm\.bias"):
        save_folder(wrong, tmp_path / "m")
    with pytest.raises(InputError, match="and 10 more"):
        replace(make_checkpoint(), tensors={}).build()
    with pytest.raises(InputError, match="1 class names for 2 outputs"):
        save_folder(replace(make_checkpoint(), classes=("one",)), tmp_path / "m")
    assert not [*tmp_path.iterdir()]


def test_only_model_folders_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").touch()
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "model.json").write_text('{"modelTopology": {}}')
    with pytest.raises(InputError, match="is a file"):
        save_folder(make_checkpoint(), tmp_path / "file")
    with pytest.raises(InputError, match=r"photos: is not replaced.*cat\.jpg"):
        save_folder(make_checkpoint(), tmp_path / "photos")
    with pytest.raises(InputError, match="foreign: is not replaced"):
        save_folder(make_checkpoint(), tmp_path / "foreign")
    save_folder(make_checkpoint(), tmp_path / "empty")
    (tmp_path / "empty" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"notes\.txt"):
        save_folder(make_checkpoint(seed=1), tmp_path / "empty")
    assert same(make_checkpoint(), load_folder(tmp_path / "empty"))
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"file", "empty", "photos", "foreign"}


def test_a_link_is_followed(tmp_path: Path) -> None:
    save_folder(make_checkpoint(), tmp_path / "real")
    (tmp_path / "latest").symlink_to("real")
    save_folder(make_checkpoint(seed=1), tmp_path / "latest")
    assert (tmp_path / "latest").is_symlink()
    assert same(make_checkpoint(seed=1), load_folder(tmp_path / "real"))


def test_a_failed_save_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_folder(make_checkpoint(), tmp_path / "m")

    def fail(path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(model_folder, "sync", fail)
    with pytest.raises(InputError, match="No space left on device; what was there stays"):
        save_folder(make_checkpoint(seed=1), tmp_path / "m")
    assert [path.name for path in tmp_path.iterdir()] == ["m"]
    assert same(make_checkpoint(), load_folder(tmp_path / "m"))
