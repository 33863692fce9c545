"""Numbers in files beside the weights are bounded, and what is written is like other files."""

import json
import os
import struct
import zipfile
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from vitrail.config import InputError
from vitrail.data.transforms.preprocess import Preprocess
from vitrail.models import build
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.conversion.convert import convert
from vitrail.weights.formats.keymap import write_table
from vitrail.weights.formats.timm.timm import TIMM
from vitrail.weights.formats.torchvision import TORCHVISION
from vitrail.weights.load import read_checkpoint
from vitrail.weights.model_folder import save_folder
from vitrail.weights.uncertainty_record import Uncertainty, UncertaintyFacts

TINY = "ViT/8@16,depth=1,width=64,heads=1,mlp=32,classes=3,activation=gelu"
IMAGE = Preprocess(
    size=(16, 16), mean=(0.5,) * 3, std=(0.5,) * 3, interpolation="bicubic", fit="crop", crop=0.8
)


def checkpoint() -> Checkpoint:
    model = build(TINY, seed=0)
    tensors = {name: value.detach() for name, value in model.state_dict().items()}
    return Checkpoint(spec=model.spec, tensors=tensors, preprocess=IMAGE)


def write_clip(folder: Path) -> Path:
    """Write what open_clip has beside its weights; those here are timm's, which is enough."""
    folder.mkdir()
    theirs = write_table(TIMM.table(checkpoint().spec), checkpoint().tensors)
    save_file(theirs, folder / "open_clip_model.safetensors")
    said = {"mean": [0.5] * 3, "std": [0.5] * 3, "interpolation": "bicubic"}
    config: dict[str, Any] = {"model_cfg": {"vision_cfg": {"image_size": 16}}}
    config |= {"preprocess_cfg": said, "model_args": {"num_heads": 1}}
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    return folder / "open_clip_model.safetensors"


def edit_json(path: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    data = json.loads(path.read_text())
    data.pop("checksum", None)
    edit(data)
    path.write_text(json.dumps(data))


def place(source: str, folder: Path) -> tuple[str, Path]:
    """Write a model as a project has it; give what is read, and the file that says how."""
    if source == "open_clip":
        return str(write_clip(folder / source)), folder / source / "open_clip_config.json"
    save_folder(checkpoint(), folder / "ours")
    if source == "vitrail":
        return str(folder / "ours"), folder / "ours" / "model.json"
    convert(str(folder / "ours"), folder / source, source)
    name = {"hf": "preprocessor_config.json", "timm": "config.json"}[source]
    return str(folder / source), folder / source / name


PATHS: dict[str, dict[str, list[str]]] = {
    "vitrail": {key: ["preprocess", key] for key in ("size", "mean", "std", "crop")},
    "hf": {"size": ["crop_size"], "mean": ["image_mean"], "std": ["image_std"]},
    "timm": {
        "size": ["pretrained_cfg", "input_size"],
        "mean": ["pretrained_cfg", "mean"],
        "std": ["pretrained_cfg", "std"],
        "crop": ["pretrained_cfg", "crop_pct"],
    },
    "open_clip": {
        "size": ["model_cfg", "vision_cfg", "image_size"],
        "mean": ["preprocess_cfg", "mean"],
        "std": ["preprocess_cfg", "std"],
    },
}
WRONG: dict[str, list[Any]] = {
    "size": [30_000, 0, -16, 10**400],
    "mean": [[float("nan")] * 3, [float("inf")] * 3, [1e300] * 3, [10**400] * 3],
    "std": [[0.0] * 3, [-0.5] * 3, [float("nan")] * 3, [float("inf")] * 3, [1e-30] * 3],
    "crop": [1e-9, 2.0, float("nan"), -1.0],
}


@pytest.mark.parametrize(
    ("source", "key"), [(source, key) for source, keys in PATHS.items() for key in keys]
)
def test_preprocessing_is_bounded(source: str, key: str, tmp_path: Path) -> None:
    read, path = place(source, tmp_path)
    read_checkpoint(read)
    before = path.read_text()
    *rooms, leaf = PATHS[source][key]
    for value in WRONG[key]:
        if key == "size":
            shape = {"hf": {"height": value, "width": value}, "open_clip": value}
            value = shape.get(source, [3, value, value] if source == "timm" else [value, value])

        def put(data: dict[str, Any], value: Any = value) -> None:
            for room in rooms:
                data = data[room]
            data[leaf] = value

        edit_json(path, put)
        with pytest.raises(InputError) as caught:
            read_checkpoint(read)
        assert len(str(caught.value).removeprefix(str(tmp_path))) < 400
        assert "\n" not in str(caught.value)
        path.write_text(before)


def test_a_resize_of_the_short_side_is_bounded(tmp_path: Path) -> None:
    read, path = place("hf", tmp_path)
    edit_json(path, lambda data: data.update(size={"shortest_edge": 30_000}))
    with pytest.raises(
        InputError, match=r"preprocessor_config\.json: crop must be in \[0\.05, 1\]"
    ):
        read_checkpoint(read)


def test_a_spec_for_images_of_any_size_is_bounded(tmp_path: Path) -> None:
    """A BiT has no positions that would contradict a size."""
    model = build("BiT@64,stages=1-1,width=32,classes=3")
    save_folder(Checkpoint(spec=model.spec, tensors=dict(model.state_dict())), tmp_path / "bit")
    edit_json(tmp_path / "bit" / "model.json", lambda data: data["spec"].update(image=[64, 30_000]))
    with pytest.raises(InputError, match="images of 64x30000 pixels; the limit is 4096 on a side"):
        read_checkpoint(str(tmp_path / "bit"))


def numbers_of(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """List the places of all numbers in plain data."""
    if isinstance(data, dict | list):
        items = data.items() if isinstance(data, dict) else enumerate(data)
        return [each for key, value in items for each in numbers_of(value, (*path, key))]
    return [path] * (isinstance(data, int | float) and not isinstance(data, bool))


def test_every_number_of_a_record_is_bounded(tmp_path: Path) -> None:
    """What is read in spite of an absurd number still computes finite probabilities."""
    facts = UncertaintyFacts(temperature=2.0, ece_before=0.2, ece_after=0.1, images=4, data="x")
    known = Uncertainty(
        facts=facts,
        confidence=torch.rand(4, dtype=torch.float64),
        correct=torch.ones(4, dtype=torch.uint8),
        means=torch.zeros(0, 0),
        distances=torch.zeros(0),
    )
    save_folder(replace(checkpoint(), uncertainty=known), tmp_path / "m")
    record = tmp_path / "m" / "model.json"
    before = json.loads(record.read_text())
    del before["checksum"]
    places = numbers_of(before)
    assert ("spec", "branches") in places
    assert ("uncertainty", "temperature") in places
    refused = 0
    for path in places:
        for value in (10**9, 10**400, 1e-320, -3, float("nan"), float("inf")):
            changed = json.loads(json.dumps(before))
            inner = changed
            for key in path[:-1]:
                inner = inner[key]
            inner[path[-1]] = value
            record.write_text(json.dumps(changed))
            try:
                read = read_checkpoint(str(tmp_path / "m"))
            except InputError as error:
                refused += "\n" not in str(error)
                continue
            with torch.no_grad():
                logits = read.build()(torch.rand(1, 3, 16, 16))
            divisor = read.uncertainty.temperature if read.uncertainty else 1.0
            assert torch.softmax(logits / divisor, 1).isfinite().all(), (path, value)
    assert refused > 4 * len(places)


def test_a_model_larger_than_memory_is_not_built() -> None:
    with pytest.raises(InputError, match=r"GiB of weights, this machine .* GiB of free memory"):
        build("ViT-B/16,depth=10000,width=12288,mlp=49152")
    assert build("ViT-B/16,depth=2,width=122880", device="meta").spec.width == 122880


def test_our_own_folder_has_no_nan(tmp_path: Path) -> None:
    bad = checkpoint()
    bad.tensors["blocks.0.mlp.hidden.weight"][0, :2] = float("nan")
    save_folder(bad, tmp_path / "m")
    with pytest.raises(InputError, match=r"NaN or Inf: blocks\.0\.mlp\.hidden\.weight \(2\)"):
        read_checkpoint(str(tmp_path / "m"))


def test_a_huge_record_is_not_read(tmp_path: Path) -> None:
    save_folder(checkpoint(), tmp_path / "m")
    with (tmp_path / "m" / "model.json").open("r+b") as file:
        file.truncate(20_000_000)
    with pytest.raises(InputError, match=r"model\.json: has 20_000_000 bytes; the limit is"):
        read_checkpoint(str(tmp_path / "m"))
    with pytest.raises(InputError, match="is not replaced"):
        save_folder(checkpoint(), tmp_path / "m")


def write_many(path: Path, count: int) -> None:
    """Write a safetensors file of empty tensors."""
    entry = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    header = json.dumps({f"b{i}": entry for i in range(count)}, separators=(",", ":")).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header)


def test_many_empty_tensors_are_refused_at_once(tmp_path: Path) -> None:
    write_many(tmp_path / "w.safetensors", 60_000)
    arrays: dict[str, Any] = {f"b{i}": np.zeros(0, np.float32) for i in range(10_001)}
    np.savez(tmp_path / "w.npz", **arrays)
    torch.save({name: torch.zeros(0) for name in arrays}, tmp_path / "w.pth")
    for name, count in (("safetensors", "60_000"), ("npz", "10_001"), ("pth", "10_001")):
        with pytest.raises(InputError, match=f"holds {count} tensors; the limit is 10_000"):
            read_checkpoint(str(tmp_path / f"w.{name}"))


def test_an_empty_tensor_of_an_absurd_shape_is_refused(tmp_path: Path) -> None:
    """Its product is 0 bytes, but torch multiplies the other sides."""
    shape = [0, 2**61, 2**61]
    entry = {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}
    header = json.dumps({"w": entry}).encode()
    (tmp_path / "w.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    array = BytesIO()
    described = {"descr": "<f4", "fortran_order": False, "shape": tuple(shape)}
    np.lib.format.write_array_header_1_0(array, described)
    with zipfile.ZipFile(tmp_path / "w.npz", "w") as archive:
        archive.writestr("w.npy", array.getvalue())
    for name in ("w.safetensors", "w.npz"):
        with pytest.raises(InputError, match=r"impossible shape, .*2305843009213693952"):
            read_checkpoint(str(tmp_path / name))


@pytest.mark.parametrize("format", [TIMM, TORCHVISION], ids=lambda each: each.name)
def test_a_name_that_claims_many_blocks_builds_none(format: Any, tmp_path: Path) -> None:
    theirs = write_table(format.table(checkpoint().spec), checkpoint().tensors)
    block = "encoder.layers.encoder_layer_{}.x" if format is TORCHVISION else "blocks.{}.x"
    empty = {f"b{i}": torch.zeros(0) for i in range(5000)}
    save_file({**theirs, **empty, block.format(4000): torch.zeros(0)}, tmp_path / "w.safetensors")
    with pytest.raises(InputError, match="4_001 blocks can't be made of"):
        read_checkpoint(str(tmp_path / "w.safetensors"), model=TINY)


def test_names_of_tensors_are_escaped_and_cut(tmp_path: Path) -> None:
    odd = "\x1b[2J\u202e" + "x" * 100_000
    theirs = write_table(TIMM.table(checkpoint().spec), checkpoint().tensors)
    save_file({**theirs, odd: torch.zeros(1)}, tmp_path / "w.safetensors")
    save_file({odd: torch.zeros(1)}, tmp_path / "v.safetensors")
    for name in ("w", "v"):
        with pytest.raises(InputError) as caught:
            read_checkpoint(str(tmp_path / f"{name}.safetensors"), model=TINY)
        said = str(caught.value)
        assert r"\x1b[2J\u202exxxx" in said
        assert said.isprintable()
        assert len(said) < 500 + len(str(tmp_path))


@pytest.mark.parametrize("to", ["vitrail", "npz", "bigvision", "timm", "hf", "torchvision"])
def test_the_same_model_gives_the_same_bytes(to: str, tmp_path: Path) -> None:
    """Safetensors leaves two entries of metadata in either order: eight times shows it."""
    named = replace(checkpoint(), classes=("cat", "dog", "Käfer"))
    save_folder(named, tmp_path / "ours")
    written = set()
    for number in range(8):
        out = tmp_path / str(number) / "out"  # torch.save writes the name into the file
        files = convert(str(tmp_path / "ours"), out, to).files
        written.add(b"".join(file.read_bytes() for file in files))
    assert len(written) == 1
    if to in ("timm", "hf"):
        (data,) = written
        assert data[8:].startswith(b'{"__metadata__":{"format":"pt","vitrail.spec":')


@pytest.mark.parametrize("to", ["vitrail", "npz", "bigvision", "timm", "hf", "torchvision"])
def test_files_have_the_usual_rights(to: str, tmp_path: Path) -> None:
    mask = os.umask(0o027)
    try:
        save_folder(checkpoint(), tmp_path / "ours")
        written = convert(str(tmp_path / "ours"), tmp_path / "out", to).files
    finally:
        os.umask(mask)
    for file in (*written, *(tmp_path / "ours").iterdir()):
        assert file.stat().st_mode & 0o777 == 0o640
        assert file.parent == tmp_path or file.parent.stat().st_mode & 0o777 == 0o750


def test_what_a_killed_conversion_left_is_removed(tmp_path: Path) -> None:
    save_folder(checkpoint(), tmp_path / "ours")
    left = tmp_path / ".vitrail-12345678"
    left.mkdir()
    (left / "preprocessor_config.json").write_text("of another model")
    convert(str(tmp_path / "ours"), tmp_path / "out", "timm")
    there = {path.name for path in (tmp_path / "out").iterdir()}
    assert there == {"model.safetensors", "config.json"}
    assert not left.exists()
    (tmp_path / ".out.npz.part").mkdir()
    convert(str(tmp_path / "ours"), tmp_path / "out.npz", "npz")
    assert (tmp_path / "out.npz").is_file()
