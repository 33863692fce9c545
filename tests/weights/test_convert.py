"""Weights through the command's own path: there and back, between formats, and the real ViT-Ti/16.

Covers: `vitrail convert`, `vitrail weights show / list`, `vitrail.load`, provenance, refusals.
"""

import errno
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import vitrail
from tests.cases import slow
from tests.data.decoding.images import photo
from tests.parity import peers
from vitrail.cli import main
from vitrail.config import InputError
from vitrail.data import Preprocess
from vitrail.models import build, parse
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.class_names import imagenet_classes
from vitrail.weights.conversion.convert import compare_logits, convert
from vitrail.weights.conversion.write_formats import WRITERS
from vitrail.weights.formats.keymap import write_table
from vitrail.weights.formats.torchvision import TORCHVISION
from vitrail.weights.load import read_checkpoint
from vitrail.weights.model_folder import load_folder, save_folder

TINY = "ViT/8@32,depth=2,width=128,heads=2,mlp=96,classes=5"
RULE: dict[str, Any] = {"position_resize": "google"}
FILES = {"npz": "m.npz", "bigvision": "b.npz", "torchvision": "t.pth"}


def make(folder: Path, name: str) -> Checkpoint:
    """Save a model of ours with random parameters as a folder."""
    model = build(name)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    checkpoint = Checkpoint(
        spec=model.spec, tensors={k: v.detach() for k, v in model.state_dict().items()}
    )
    save_folder(checkpoint, folder)
    return checkpoint


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    code = 0
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as stop:
        code = int(stop.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize(
    ("name", "formats"),
    [
        (f"{TINY},activation=gelu", ["npz", "timm", "hf", "torchvision"]),
        (TINY, ["npz", "timm", "hf"]),
        (f"{TINY},representation=64", ["npz"]),
        (f"{TINY},pool=gap", ["npz", "bigvision", "timm", "hf"]),
        (f"{TINY},pool=map,classes=0", ["bigvision", "timm", "hf"]),
        (f"{TINY},class_position=false", ["bigvision", "timm"]),
        (f"{TINY},distilled=true,activation=gelu", ["timm", "hf"]),
        ("BiT@64,stages=1-1-1-1,width=32,classes=5", ["npz", "bigvision"]),
        ("BiT@64,stages=1-1-1-1,width=32,classes=5,standardize=timm,pool_padding=zeros",
         ["npz", "timm"]),
        ("Hybrid/1@64,stages=1-1-1,stem_width=32,depth=1,width=128,heads=2,mlp=64,classes=5",
         ["npz"]),
    ],
)  # fmt: skip
def test_between_any_two_formats_nothing_is_lost(
    name: str, formats: list[str], tmp_path: Path
) -> None:
    """Ours to each format and on to each other, bit for bit; then back to ours."""
    original = make(tmp_path / "ours", name)
    for first in formats:
        one = tmp_path / f"{first}-{FILES.get(first, 'folder')}"
        assert convert(str(tmp_path / "ours"), one, first).max_difference <= 1e-5
        for second in [*(f for f in formats if f != first), "vitrail"]:
            two = tmp_path / f"{first}-{second}-{FILES.get(second, 'folder')}"
            # Of these, torchvision's files alone don't say the heads.
            convert(f"file:{one}", two, second, model=name if first == "torchvision" else None)
            back = read_checkpoint(str(two), model=name if second == "torchvision" else None)
            # torchvision's files have no place for the rule that resizes positions.
            rule = {} if "torchvision" not in (first, second) else RULE
            assert replace(back.spec, **rule) == replace(original.spec, **rule)
            assert back.tensors.keys() == original.tensors.keys()
            for key, value in original.tensors.items():
                assert torch.equal(back.tensors[key], value), (first, second, key)


def test_big_vision_folds_the_class_tokens_position(tmp_path: Path) -> None:
    original = make(tmp_path / "ours", TINY)
    written = convert(str(tmp_path / "ours"), tmp_path / "b.npz", "bigvision")
    assert written.max_difference <= 1e-5
    spec = read_checkpoint(f"file:{tmp_path / 'b.npz'}").spec
    assert spec == parse(f"{TINY},class_position=false")
    assert spec != original.spec


@pytest.mark.parametrize(
    ("name", "to", "message"),
    [
        (f"{TINY},position=learned-2d", "timm", "does not support"),
        (f"{TINY},registers=2", "torchvision", "does not support"),
        ("AxialViT/8@32,depth=1,width=128,heads=2,mlp=64", "npz", "does not support"),
        (TINY, "torchvision", "does not support"),  # torchvision's GELU is exact
        (TINY, "tim", "no format 'tim'; there are: vitrail, npz"),
    ],
)
def test_what_has_no_place_is_refused_and_leaves_nothing(
    name: str, to: str, message: str, tmp_path: Path
) -> None:
    make(tmp_path / "ours", name)
    before = set(tmp_path.iterdir())
    with pytest.raises(InputError, match=message):
        convert(str(tmp_path / "ours"), tmp_path / "out", to)
    assert set(tmp_path.iterdir()) == before


def test_an_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    make(tmp_path / "ours", TINY)
    (tmp_path / "out.npz").write_text("mine")
    with pytest.raises(InputError, match="exists"):
        convert(str(tmp_path / "ours"), tmp_path / "out.npz", "npz")
    assert (tmp_path / "out.npz").read_text() == "mine"


@pytest.mark.parametrize("to", ["npz", "timm", "torchvision"])
def test_a_full_disk_leaves_nothing_behind(
    to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "ours", f"{TINY},activation=gelu")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("vitrail.files.sync", full)
    with pytest.raises(InputError, match="cannot be written: No space left on device"):
        convert(str(tmp_path / "ours"), tmp_path / "deep" / "out", to)
    assert list((tmp_path / "deep").iterdir()) == []


def test_load_fits_a_new_task_and_says_how(tmp_path: Path) -> None:
    make(tmp_path / "ours", f"{TINY},activation=gelu")
    convert(str(tmp_path / "ours"), tmp_path / "timm", "timm")
    loaded = vitrail.load(str(tmp_path / "timm"), classes=3, image=(48, 64), channels=1)
    assert not loaded.model.training
    assert loaded.model(torch.randn(2, 1, 48, 64)).shape == (2, 3)
    assert loaded.classes is None
    assert loaded.provenance is not None
    assert loaded.provenance.format == "timm"
    said = " ".join(loaded.provenance.changes)
    for words in ("replaced head.output: 5 classes -> 3", "grid 4x4 -> 6x8", "3 -> 1 channels"):
        assert words in said


def test_a_name_is_checked_against_the_file(tmp_path: Path) -> None:
    make(tmp_path / "ours", f"{TINY},activation=gelu")
    convert(str(tmp_path / "ours"), tmp_path / "t.pth", "torchvision")
    assert read_checkpoint(str(tmp_path / "t.pth"), model=TINY).spec.tokens == 17
    with pytest.raises(InputError, match="depth 2, not 3"):
        read_checkpoint(str(tmp_path / "t.pth"), model=TINY.replace("depth=2", "depth=3"))


def test_numbers_that_are_none_are_named(tmp_path: Path) -> None:
    make(tmp_path / "ours", f"{TINY},activation=gelu")
    convert(str(tmp_path / "ours"), tmp_path / "t.pth", "torchvision")
    state = torch.load(tmp_path / "t.pth", weights_only=True)
    state["encoder.layers.encoder_layer_1.mlp.0.weight"][0, :3] = float("nan")
    torch.save(state, tmp_path / "bad.pth")
    with pytest.raises(InputError, match=r"NaN or Inf: blocks\.1\.mlp\.hidden\.weight \(3\)"):
        read_checkpoint(str(tmp_path / "bad.pth"), model=TINY)


def test_a_head_of_zeros_is_said(tmp_path: Path) -> None:
    model = build(f"{TINY},activation=gelu")
    tensors = {name: value.detach() for name, value in model.state_dict().items()}
    save_folder(Checkpoint(spec=model.spec, tensors=tensors), tmp_path / "ours")
    torch.save(_torchvision_names(tmp_path), tmp_path / "zero.pth")
    provenance = read_checkpoint(str(tmp_path / "zero.pth"), model=TINY).provenance
    assert provenance is not None
    assert len(provenance.sha256) == 64
    assert any("all zeros" in change for change in provenance.changes)


def _torchvision_names(folder: Path) -> dict[str, torch.Tensor]:
    checkpoint = read_checkpoint(str(folder / "ours"))
    return write_table(TORCHVISION.table(checkpoint.spec), checkpoint.tensors)


def test_class_names() -> None:
    names = imagenet_classes(1000)
    assert names is not None
    assert (len(names), names[0], names[281]) == (1000, "tench, Tinca tinca", "tabby, tabby cat")
    for count in (21_841, 21_843):
        many = imagenet_classes(count)
        assert many is not None
        assert len(many) == count
    assert imagenet_classes(37) is None


def test_the_command_converts_and_shows(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    make(tmp_path / "ours", f"{TINY},activation=gelu")
    arguments = ["convert", tmp_path / "ours", tmp_path / "m.npz", "--to", "npz", "--json"]
    code, out, _ = run(capsys, *arguments)
    result = json.loads(out)
    assert code == 0
    assert result["format"] == "npz"
    assert result["files"] == [str(tmp_path / "m.npz")]
    assert result["max_difference"] <= 1e-5
    code, out, _ = run(capsys, "weights", "show", tmp_path / "m.npz", "--json")
    shown = json.loads(out)
    assert (code, shown["format"], shown["classes"]) == (0, "google", 5)
    assert shown["spec"] == f"{TINY},activation=gelu"
    assert len(shown["sha256"]) == 64
    code, _, err = run(capsys, "weights", "show", tmp_path / "none.npz")
    assert code == 2
    assert err.count("\n") == 1


def test_the_command_lists_published_weights(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "weights", "list", "--json")
    entries = json.loads(out)
    assert code == 0
    assert len(entries) > 20
    assert any(entry["source"].startswith("google:") for entry in entries)
    code, out, _ = run(capsys, "weights", "list")
    assert "timm:" in out


@pytest.mark.parametrize("formats", [("npz",), slow(("hf", "torchvision", "bigvision", "vitrail"))])
def test_timms_vit_tiny_equals_timms(
    tmp_path: Path, timm_tiny: Path, formats: tuple[str, ...]
) -> None:
    timm = peers.load("timm")
    loaded = vitrail.load(str(timm_tiny))
    assert sum(p.numel() for p in loaded.model.parameters()) == 5_717_416
    assert loaded.preprocess is not None
    assert (loaded.preprocess.mean, loaded.preprocess.crop) == ((0.5,) * 3, 0.9)
    assert loaded.classes == imagenet_classes(1000)
    peer = timm.create_model(
        "vit_tiny_patch16_224", checkpoint_path=str(timm_tiny / "model.safetensors")
    ).eval()
    x = torch.stack([photo_tensor(seed) for seed in range(2)])
    with torch.inference_mode():
        ours, theirs = loaded.model(x), peer(x)
    assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max()
    for to in formats:
        out = tmp_path / FILES.get(to, to)
        assert convert(str(timm_tiny), out, to).max_difference <= 1e-5
        with torch.inference_mode():
            named = (
                "ViT-Ti/16" if to == "torchvision" else None
            )  # whose own models have no such size
            again = vitrail.load(str(out), model=named).model(x)
        assert (again - theirs).abs().max() <= 1e-5 * theirs.abs().max()


def photo_tensor(seed: int) -> torch.Tensor:
    """Draw an image of 224 pixels, from -1 to 1: smooth shades and some noise."""
    shades = torch.from_numpy(photo(224, 224)).roll(17 * seed, 0).permute(2, 0, 1).float()
    noise = torch.randn(3, 224, 224, generator=torch.Generator().manual_seed(seed))
    return (shades + 20 * noise).clamp(0, 255) / 127.5 - 1


def test_every_format_has_a_writer_that_is_tested() -> None:
    assert set(WRITERS) == {"vitrail", "npz", "bigvision", "timm", "hf", "torchvision"}


def test_compare_sees_a_difference(tmp_path: Path) -> None:
    first = make(tmp_path / "a", TINY)
    torch.manual_seed(7)
    second = make(tmp_path / "b", TINY)
    assert compare_logits(first, first) == 0
    assert compare_logits(first, second) > 0.1
    zero = {"head.output.weight": torch.zeros(5, 128), "head.output.bias": torch.zeros(5)}
    blind = [
        replace(checkpoint, tensors={**checkpoint.tensors, **zero})
        for checkpoint in (first, second)
    ]
    assert compare_logits(*blind) > 0.1
    assert load_folder(tmp_path / "a").spec == first.spec


@pytest.mark.parametrize("to", WRITERS)
def test_a_multi_label_model_stays_one_or_it_is_said(tmp_path: Path, to: str) -> None:
    """Read as softmax, (4, 4, -4) would be 50 / 50 / 0 %."""
    made = make(tmp_path / "ours", f"{TINY},activation=gelu")
    limits = (0.25, 0.5, 0.125, 0.75, 1.0)
    save_folder(
        replace(made, classes=tuple("abcde"), activation="sigmoid", thresholds=limits),
        tmp_path / "ours",
    )
    if to == "bigvision":
        pytest.skip("has no exact GELU")
    result = convert(str(tmp_path / "ours"), out := tmp_path / FILES.get(to, "out"), to)
    again = read_checkpoint(str(out), model=str(made.spec))
    if to == "torchvision":
        assert again.activation == "softmax"
        unsaid = "the number of heads"
        assert result.lost == ("class names", "sigmoid probabilities", "thresholds", unsaid)
        assert "not kept by torchvision: class names, sigmoid" in [*result.summary()][-1]
    else:
        assert (again.activation, again.thresholds) == ("sigmoid", limits)
        lost = {"npz": ["class names", "activation=gelu"]}
        assert [each.partition(" (")[0] for each in result.lost] == lost.get(to, [])


@pytest.mark.parametrize("to", ["npz", "bigvision"])
def test_that_googles_code_has_another_gelu_is_said(to: str, tmp_path: Path) -> None:
    """Its nn.gelu is the tanh form; the logits there are those of our model with that form."""
    tanh = make(tmp_path / "tanh", f"{TINY},pool=gap")
    exact = replace(tanh, spec=replace(tanh.spec, activation="gelu"))
    save_folder(exact, tmp_path / "exact")
    assert convert(str(tmp_path / "tanh"), tmp_path / "tanh.npz", to).lost == ()
    result = convert(str(tmp_path / "exact"), tmp_path / "exact.npz", to)
    off = compare_logits(exact, tanh)
    assert off > 1e-5
    said = f"activation=gelu (its own code has gelu-tanh: logits differ by {off:.1e})"
    assert result.lost == (said,)
    assert [*result.summary()][-1] == f"not kept by {to}: {said}"
    assert load_folder(tmp_path / "exact").spec == read_checkpoint(str(tmp_path / "exact.npz")).spec


def test_preprocessing_that_a_format_says_otherwise_is_named(tmp_path: Path) -> None:
    made = make(tmp_path / "ours", f"{TINY},activation=gelu")
    size = made.spec.image
    timms = Preprocess(
        size=size, mean=(0.485, 0.456, 0.406), std=(0.3,) * 3, interpolation="bicubic", fit="crop",
        crop=0.9, antialias=False,
    )  # fmt: skip
    save_folder(replace(made, preprocess=timms), tmp_path / "ours")
    assert convert(str(tmp_path / "ours"), tmp_path / "timm", "timm").lost == (
        "preprocessing's antialias=False (it says True)",
    )
    assert convert(str(tmp_path / "timm"), tmp_path / "hf", "hf").lost == (
        "preprocessing's center=round (it says floor)",
    )
    assert convert(str(tmp_path / "hf"), tmp_path / "hf2", "hf").lost == ()
    assert convert(str(tmp_path / "hf"), tmp_path / "timm2", "timm").lost == (
        "preprocessing's center=floor (it says round)",
    )


def test_transformers_says_that_a_model_is_multi_label(tmp_path: Path) -> None:
    transformers = peers.load("transformers")
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.ViTConfig(
        num_hidden_layers=1, image_size=16, patch_size=8, num_labels=3, **sizes,
        problem_type="multi_label_classification",
    )  # fmt: skip
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path / "theirs")
    assert read_checkpoint(str(tmp_path / "theirs")).activation == "sigmoid"
    result = convert(str(tmp_path / "theirs"), tmp_path / "back", "hf")
    assert result.lost == ()
    back = transformers.ViTForImageClassification.from_pretrained(tmp_path / "back")
    assert back.config.problem_type == "multi_label_classification"
