"""What a given name adds to a file, and what weights of one task are for the next."""

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from vitrail.config import InputError
from vitrail.data.transforms.preprocess import Preprocess
from vitrail.models import build, parse
from vitrail.weights.adapt import adapt_checkpoint, adapt_to_model, find_classes
from vitrail.weights.checkpoint import Checkpoint, Provenance
from vitrail.weights.class_names import imagenet_classes, imagenet_wnids
from vitrail.weights.conversion.convert import compare_logits, convert
from vitrail.weights.conversion.write_formats import WRITERS
from vitrail.weights.formats.format import Format
from vitrail.weights.formats.huggingface.huggingface import HF_VIT
from vitrail.weights.formats.keymap import Tensors, write_table
from vitrail.weights.formats.timm.timm import TIMM
from vitrail.weights.formats.torchvision import TORCHVISION
from vitrail.weights.identify import SPEC_KEY
from vitrail.weights.load import load, read_checkpoint
from vitrail.weights.model_folder import save_folder

TINY = "ViT/8@16,depth=1,width=32,heads=2,mlp=32,classes=3,activation=gelu"
WIDE = "ViT/8@16x24,depth=1,width=64,heads=1,mlp=32,classes=3,activation=gelu"
IMAGE = Preprocess(
    size=(64, 64), mean=(0.5,) * 3, std=(0.5,) * 3, interpolation="bicubic", fit="crop"
)


def make_checkpoint(name: str) -> Checkpoint:
    model = build(name)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return Checkpoint(
        spec=model.spec, tensors={k: v.detach() for k, v in model.state_dict().items()}
    )


def theirs(name: str, format: Format) -> Tensors:
    found = make_checkpoint(name)
    written = write_table(format.table(found.spec), found.tensors)
    return {key: value.clone() for key, value in written.items()}


@pytest.mark.parametrize("format", [TIMM, TORCHVISION, HF_VIT], ids=lambda each: each.name)
@pytest.mark.parametrize("name", [TINY, WIDE])
def test_a_name_says_what_a_file_leaves_open(format: Format, name: str, tmp_path: Path) -> None:
    path = tmp_path / "w.pth"
    torch.save(theirs(name, format), path)
    with pytest.raises(InputError, match=r"name (the model|timm's architecture)"):
        read_checkpoint(str(path))
    found = read_checkpoint(str(path), model=name).spec
    for field in ("image", "heads", "depth", "classes"):
        assert getattr(found, field) == getattr(parse(name), field)


@pytest.mark.parametrize("to", ["vitrail", "timm"])
def test_a_name_with_other_heads_than_we_wrote_is_refused(to: str, tmp_path: Path) -> None:
    save_folder(make_checkpoint(TINY), tmp_path / "own")
    convert(str(tmp_path / "own"), tmp_path / "out", to)
    with pytest.raises(InputError, match="heads 2, not 4"):
        read_checkpoint(str(tmp_path / "out"), model=TINY.replace("heads=2", "heads=4"))


@pytest.mark.parametrize(
    "said",
    [
        "{",
        "[]",
        "[" * 100_000,
        '{"family": []}',
        '{"family": "vit", "depth": 3}',
        '{"family": "vit", "depth": 1000000000, "width": 32, "heads": 2, "mlp": 32}',
        '{"family": "vit", "depth": 1, "width": 4000000000, "heads": 1, "mlp": 4000000000}',
        json.dumps({"family": "bit", "stages": [1] * 100_000}),
    ],
)
def test_a_spec_in_a_file_is_not_trusted(said: str, tmp_path: Path) -> None:
    save_file(theirs(TINY, TIMM), tmp_path / "w.safetensors", metadata={SPEC_KEY: said})
    with pytest.raises(InputError, match=r"w\.safetensors: the spec"):
        read_checkpoint(str(tmp_path / "w.safetensors"))


def test_an_axial_resnet_is_fitted_to_new_classes() -> None:
    old = make_checkpoint("BiT@32,stages=1-1,width=32,heads=4,classes=3")
    fitted = adapt_to_model(old, old.spec, classes=2)
    assert fitted.spec == replace(old.spec, classes=2)
    assert fitted.build()(torch.zeros(1, 3, 32, 32)).shape == (1, 2)
    with pytest.raises(InputError, match="leave image out"):
        adapt_checkpoint(old, image=(64, 64))


@pytest.mark.parametrize(
    ("options", "heads"),
    [
        ("", ["head"]),
        (",distilled=true", ["head", "distillation_head"]),
        (",head_bias=false", ["head"]),
    ],
)
def test_classes_of_the_same_name_keep_their_rows(options: str, heads: list[str]) -> None:
    origin = Provenance(source="run:runs/pets", sha256="", format="vitrail")
    old = replace(
        make_checkpoint(f"{TINY}{options}"), classes=("cat", "dog", "pug"), provenance=origin
    )
    new = adapt_to_model(old, replace(old.spec, classes=1), classes=["pug", "newt", "cat", "eft"])
    assert new.classes == ("pug", "newt", "cat", "eft")
    assert new.spec.classes == 4
    for head in heads:
        for leaf in ("weight", "bias"):
            rows = old.tensors.get(f"{head}.output.{leaf}", torch.zeros(3))
            made = new.tensors[f"{head}.output.{leaf}"]
            zero = torch.zeros_like(rows[0])
            assert torch.equal(made, torch.stack([rows[2], zero, rows[0], zero]))
    assert new.provenance is not None
    assert new.provenance.changes == tuple(
        f"adapted {head}.output: 2 of 4 classes kept by name, 2 start at zero, 1 dropped"
        for head in heads
    )


def test_the_same_classes_in_any_order_give_the_same_logits() -> None:
    old = replace(make_checkpoint(TINY), classes=("cat", "dog", "pug"), activation="sigmoid")
    x = torch.randn(2, 3, 16, 16)
    for names in (("cat", "dog", "pug"), ("dog", "pug", "cat")):
        new = adapt_to_model(old, old.spec, classes=names)
        order = [("cat", "dog", "pug").index(name) for name in names]
        torch.testing.assert_close(new.build()(x), old.build()(x)[:, order])
        assert new.activation == "sigmoid"


def test_a_head_of_other_or_unnamed_classes_is_replaced_by_zeros() -> None:
    origin = Provenance(source="run:runs/pets", sha256="", format="vitrail")
    unnamed = replace(make_checkpoint(TINY), provenance=origin)
    hidden = replace(make_checkpoint(f"{TINY},representation=8"), classes=("cat", "dog", "pug"))
    zeros = replace(make_checkpoint(TINY), classes=("cat", "dog", "pug"))
    zeros.tensors["head.output.weight"].zero_()
    others = replace(unnamed, classes=("eft", "newt", "toad"))
    for old in (unnamed, hidden, zeros, others):
        for classes in (["cat", "dog", "pug"], 3):
            new = adapt_to_model(old, replace(old.spec, representation=0), classes=classes)
            assert not new.tensors["head.output.weight"].any()
            assert not new.tensors["head.output.bias"].any()
    made = adapt_to_model(unnamed, unnamed.spec, classes=["cat", "dog"]).provenance
    assert made is not None
    assert made.changes == (
        "replaced head.output: 3 classes -> 2 classes, zeros",
        "the weights have no class names, so no row of the head could be kept",
    )


def test_imagenets_classes_are_found_all_or_none() -> None:
    """A dataset may share one name with ImageNet, and still the paper begins with zeros."""
    names, wnids = imagenet_classes(1000), imagenet_wnids(1000)
    assert names is not None
    assert wnids is not None
    assert len(set(names)) < 1000  # a bird and a machine are both called crane
    assert find_classes(names, names) == tuple(range(1000))
    assert find_classes(wnids[::-1], names) == tuple(range(999, -1, -1))
    assert find_classes(wnids[5:8], names) == (5, 6, 7)
    assert find_classes([names[9], names[4]], names) == (9, 4)
    assert find_classes([names[9], "my own dog"], names) == (None, None)
    assert find_classes(["crane"], names) == (None,)  # which of the two?
    assert find_classes(["a", "b", "b"], ["b", "a"]) == (1, None, None)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("pool=gap", "pool=token, not pool=gap"),
        ("position=sincos-2d", "position=learned-1d, not position=sincos-2d"),
        ("activation=swiglu", "activation=gelu, not activation=swiglu"),
    ],
)
def test_a_named_option_that_the_weights_have_not_is_refused(option: str, said: str) -> None:
    named = parse(f"{TINY.removesuffix(',activation=gelu')},{option}")
    with pytest.raises(InputError, match=said):
        adapt_to_model(make_checkpoint(TINY), named, classes=2)


def test_what_a_name_leaves_open_stays_as_the_weights_have_it() -> None:
    old = make_checkpoint(f"{TINY},layer_scale=1e-05,position_resize=timm")
    named = parse("ViT/8@32,depth=1,width=32,heads=2,mlp=32,dropout=0.1,layer_scale=0.1")
    spec = adapt_to_model(old, named, classes=2).spec
    assert spec == replace(old.spec, classes=2, image=(32, 32), dropout=0.1)


def test_preprocessing_keeps_its_size_unless_another_is_asked_for() -> None:
    """BiT's and DINOv2's images have another size than their files, or their positions, say."""
    old = replace(make_checkpoint(TINY), preprocess=IMAGE)
    assert adapt_checkpoint(old, classes=2).preprocess == IMAGE
    for size in ((32, 32), (16, 16)):  # which it has already, but was asked for
        assert adapt_checkpoint(old, classes=2, image=size).preprocess == replace(IMAGE, size=size)
    gray = replace(IMAGE, mean=(0.5,), std=(0.5,))
    assert adapt_checkpoint(old, channels=1).preprocess == gray


def test_weights_of_several_types_become_one(tmp_path: Path) -> None:
    """OpenAI's CLIP has its norms in float32 and the rest in float16."""
    mixed = theirs(WIDE, TIMM)
    mixed |= {key: value.half() for key, value in mixed.items() if "norm" not in key}
    torch.save(mixed, tmp_path / "w.pth")
    loaded = load(str(tmp_path / "w.pth"), model=WIDE)
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.float32}
    assert loaded.model(torch.zeros(1, 3, 16, 24)).shape == (1, 3)
    assert loaded.provenance is not None
    assert "brought to float32, from float16 and float32" in loaded.provenance.changes
    torch.save({key: value.half() for key, value in mixed.items()}, tmp_path / "half.pth")
    half = read_checkpoint(str(tmp_path / "half.pth"), model=WIDE)
    assert {tensor.dtype for tensor in half.tensors.values()} == {torch.float16}


@pytest.mark.parametrize("to", ["timm", "hf"])
def test_tied_tensors_are_written_apart(to: str, tmp_path: Path) -> None:
    tied = theirs(TINY.replace("depth=1", "depth=2"), TIMM)
    tied["blocks.1.mlp.fc1.weight"] = tied["blocks.0.mlp.fc1.weight"]
    torch.save(tied, tmp_path / "w.pth")
    name = TINY.replace("depth=1", "depth=2")
    assert convert(str(tmp_path / "w.pth"), tmp_path / "out", to, model=name).max_difference < 1e-14


def test_a_conversion_that_fails_leaves_the_older_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("old", "new"):
        save_folder(make_checkpoint(TINY), tmp_path / folder)
    before: dict[str, Any] = {file.name: file.read_bytes() for file in (tmp_path / "old").iterdir()}
    monkeypatch.setattr("vitrail.weights.conversion.convert.TOLERANCE", -1)
    with pytest.raises(InputError, match="other logits"):
        convert(str(tmp_path / "new"), tmp_path / "old", "vitrail")
    assert {file.name: file.read_bytes() for file in (tmp_path / "old").iterdir()} == before
    with pytest.raises(InputError, match="other logits"):
        convert(str(tmp_path / "new"), tmp_path / "fresh", "vitrail")
    assert {path.name for path in tmp_path.iterdir()} == {"old", "new"}


@pytest.mark.parametrize("to", sorted(WRITERS))
def test_files_are_for_whom_the_umask_says(to: str, tmp_path: Path) -> None:
    save_folder(make_checkpoint(TINY), tmp_path / "own")
    mask = os.umask(0o027)
    try:
        written = convert(str(tmp_path / "own"), tmp_path / "out", to)
    finally:
        os.umask(mask)
    assert {file.stat().st_mode & 0o777 for file in written.files} == {0o640}


def test_a_conversion_that_is_stopped_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> float:
        raise KeyboardInterrupt

    save_folder(make_checkpoint(TINY), tmp_path / "own")
    monkeypatch.setattr("vitrail.weights.conversion.convert.compare_logits", stop)
    for to in WRITERS:
        with pytest.raises(KeyboardInterrupt):
            convert(str(tmp_path / "own"), tmp_path / "out", to)
        assert [path.name for path in tmp_path.iterdir()] == ["own"]


def test_logits_that_are_no_numbers_are_a_difference() -> None:
    """Also where the features, which are compared first, are alike."""
    one, two = make_checkpoint(TINY), make_checkpoint(TINY)
    two.tensors.update(one.tensors)
    assert compare_logits(one, two) == 0
    two.tensors["head.output.bias"] = torch.full((3,), float("nan"))
    assert math.isnan(compare_logits(one, two))


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod."])
def test_what_training_puts_before_names_is_dropped(prefix: str, tmp_path: Path) -> None:
    spec = parse("ViT/8@16,depth=1,width=64,heads=1,mlp=32,classes=3,activation=gelu")
    model = build(spec, seed=1)
    theirs = write_table(TIMM.table(spec), model.state_dict())
    torch.save({prefix + key: value for key, value in theirs.items()}, tmp_path / "a.pth")
    loaded = load(str(tmp_path / "a.pth"), model=str(spec)).model
    for key, value in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[key], value), key
