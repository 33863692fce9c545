"""The second reading that `convert` checks with: it equals the projects, finds planted errors."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.parity import peers
from vitrail.config import InputError
from vitrail.models import build, parse
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.conversion import write_formats
from vitrail.weights.conversion.convert import convert
from vitrail.weights.conversion.reference import NoReferenceError, run_reference
from vitrail.weights.conversion.write_formats import WRITERS
from vitrail.weights.files.tensor_files import open_weights
from vitrail.weights.formats.google import GOOGLE
from vitrail.weights.formats.huggingface.huggingface import HF_VIT
from vitrail.weights.formats.huggingface.huggingface_config import write_hf_config
from vitrail.weights.formats.keymap import Entry, Table
from vitrail.weights.formats.timm.timm import TIMM
from vitrail.weights.formats.torchvision import TORCHVISION
from vitrail.weights.load import read_resolved
from vitrail.weights.model_folder import save_folder
from vitrail.weights.sources.resolve import resolve

TINY = "ViT/8@32,depth=2,width=64,heads=4,mlp=64,classes=5,activation=gelu"  # a square MLP
DOUBLE = TINY.replace("mlp=64", "mlp=128")  # where a Flax kernel's axes could be taken for a gate's


def save(name: str, folder: Path) -> Path:
    model = build(name, seed=3)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    tensors = {name: value.detach() for name, value in model.state_dict().items()}
    save_folder(Checkpoint(spec=model.spec, tensors=tensors), folder)
    return folder


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    return save(TINY, tmp_path / "ours")


def test_timms_own_model_is_computed() -> None:
    timm = peers.load("timm")
    for name, options in (
        ("vit_tiny_patch16_224", {}),
        ("vit_tiny_patch16_224", {"class_token": False, "global_pool": "avg", "fc_norm": False}),
        ("deit_tiny_distilled_patch16_224", {}),
        ("vit_base_patch16_siglip_224", {"num_classes": 4}),
        ("vit_base_patch16_clip_quickgelu_224", {}),
        ("vit_small_patch14_reg4_dinov2", {"num_classes": 4}),
    ):
        shape = {"depth": 2, "embed_dim": 48, "num_heads": 4, "img_size": 56, "patch_size": 14}
        model = peers.randomize(timm.create_model(name, **shape, **options), torch.float64)
        config = {"architecture": name, "model_args": shape}
        text = "ViT/14@56,depth=2,width=48,heads=4,mlp=192,activation=gelu"
        spec = replace(parse(text), pre_norm="clip" in name)
        images = torch.randn(2, 3, 56, 56, dtype=torch.float64)
        with torch.no_grad():
            _, logits = run_reference("timm", model.state_dict(), config, spec, images)
            peers.assert_near(logits, model(images), 1e-10, name)


@pytest.mark.parametrize(
    ("kind", "format"),
    [
        ("ViTForImageClassification", "transformers ViT"),
        ("DeiTForImageClassificationWithTeacher", "transformers DeiT"),
        ("Dinov2Model", "transformers DINOv2"),
        ("Dinov2WithRegistersModel", "transformers DINOv2"),
        ("CLIPVisionModelWithProjection", "transformers CLIP"),
        ("SiglipVisionModel", "transformers SigLIP"),
    ],
)
def test_transformers_own_model_is_computed(kind: str, format: str, tmp_path: Path) -> None:
    """From the folder that transformers itself writes, with its names and config."""
    transformers = peers.load("transformers")
    model_class = getattr(transformers, kind)
    config = model_class.config_class(
        hidden_size=48, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96,
        image_size=32, patch_size=8, projection_dim=7, num_labels=5, mlp_ratio=2,
    )  # fmt: skip
    model = peers.randomize(model_class(config), torch.float64)
    model.save_pretrained(tmp_path)
    found = resolve(str(tmp_path))
    spec = read_resolved(found).spec
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    state = open_weights(found.path).read()
    with torch.no_grad():
        features, logits = run_reference(format, state, found.config, spec, images)
        output = model(images)
    wanted = next(
        output[key] for key in ("logits", "image_embeds", "pooler_output") if key in output
    )
    peers.assert_near(logits, wanted, 1e-10, kind)
    assert features.shape == (2, 48)


def test_torchvisions_own_model_is_computed() -> None:
    vision = peers.load("torchvision.models.vision_transformer")
    shape = {"num_layers": 2, "num_heads": 4, "hidden_dim": 48, "mlp_dim": 96, "num_classes": 5}
    model = vision.VisionTransformer(image_size=32, patch_size=8, **shape)
    peers.randomize(model, torch.float64)
    spec = parse("ViT/8@32,depth=2,width=48,heads=4,mlp=96,classes=5,activation=gelu")
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    with torch.no_grad():
        _, logits = run_reference("torchvision", model.state_dict(), {}, spec, images)
        peers.assert_near(logits, model(images), 1e-10)


def edit(table: Callable[[Any], Table], change: Callable[[Entry], Entry]) -> Any:
    return lambda spec: tuple(map(change, table(spec)))


def swap_query_and_key(entry: Entry) -> Entry:
    if ".qkv." not in entry.ours or len(entry.parts) != 3:
        return entry
    query, key, value = entry.parts
    return replace(entry, parts=(key, query, value))


def transpose_mlp(entry: Entry) -> Entry:
    """Turn a square matrix around: the shapes still fit."""
    if not entry.ours.endswith("mlp.hidden.weight"):
        return entry
    (part,) = entry.parts
    return replace(entry, parts=(replace(part, axes=None if part.axes else (1, 0)),))


def exchange_blocks(entry: Entry) -> Entry:
    if not entry.ours.startswith("blocks."):
        return entry
    return replace(entry, ours=entry.ours.translate(str.maketrans("01", "10")))


PLANTED: dict[str, tuple[str, Any, Callable[[Entry], Entry]]] = {
    "hf, query and key": ("hf", HF_VIT, swap_query_and_key),
    "npz, query and key": ("npz", GOOGLE, swap_query_and_key),
    "npz, transposed": ("npz", GOOGLE, transpose_mlp),
    "timm, transposed": ("timm", TIMM, transpose_mlp),
    "hf, transposed": ("hf", HF_VIT, transpose_mlp),
    "torchvision, transposed": ("torchvision", TORCHVISION, transpose_mlp),
    "timm, blocks exchanged": ("timm", TIMM, exchange_blocks),
}


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, Any], None]:
    def change(format: Any, error: Callable[[Entry], Entry]) -> None:
        table = format.table
        monkeypatch.setitem(format.__dict__, "table", edit(table, error))

    return change


@pytest.mark.parametrize("case", PLANTED)
def test_a_wrong_table_is_found(case: str, ours: Path, plant: Any, tmp_path: Path) -> None:
    """Read and written by the same wrong table, so that reading it back shows no difference."""
    to, format, error = PLANTED[case]
    out = tmp_path / "out.npz"
    convert(str(ours), tmp_path / "right", to)
    before = set(tmp_path.iterdir())
    plant(format, error)
    with pytest.raises(InputError, match=r"differs by .* from a plain forward pass on the file's"):
        convert(str(ours), out, to)
    assert set(tmp_path.iterdir()) == before
    with pytest.raises(InputError, match=r"right: vitrail's reading as .* differs by"):
        convert(f"file:{tmp_path / 'right'}", tmp_path / "back", "vitrail", model=TINY)
    assert set(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("key", "value"),
    [("num_attention_heads", 2), ("hidden_act", "quick_gelu"), ("layer_norm_eps", 0.1)],
)
def test_a_wrong_config_is_found(
    key: str, value: Any, ours: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Our reader believes the spec in the metadata; another project reads config.json."""
    wrong = {**write_hf_config(parse(TINY)), key: value}
    monkeypatch.setattr(write_formats, "write_hf_config", lambda *_: wrong)
    with pytest.raises(InputError, match="plain forward pass"):
        convert(str(ours), tmp_path / "hf", "hf")


@pytest.mark.parametrize("name", [TINY, DOUBLE], ids=["square", "double"])
@pytest.mark.parametrize("to", sorted({*WRITERS} - {"vitrail"}))
def test_what_was_compared_is_said(to: str, name: str, tmp_path: Path) -> None:
    written = convert(str(save(name, tmp_path / "ours")), tmp_path / "out", to)
    assert written.compared_with.startswith("vitrail's reading of what was written, and plain")
    assert f"on the tensors of file:{tmp_path / 'out'} (" in written.compared_with
    assert "not checked" not in written.compared_with
    assert 0 < written.max_difference < (1e-6 if to == "bigvision" else 1e-12)
    assert f"compared with {written.compared_with}" in [*written.summary()]
    assert written.to_dict()["compared_with"] == written.compared_with


def test_what_has_no_second_reading_is_said(ours: Path, tmp_path: Path) -> None:
    same = convert(str(ours), tmp_path / "again", "vitrail").compared_with
    assert same.endswith("; not checked independently: both are vitrail's own format")
    bit = build("BiT@64,stages=1-1,width=32,classes=5")
    save_folder(Checkpoint(spec=bit.spec, tensors=dict(bit.state_dict())), tmp_path / "bit")
    said = convert(str(tmp_path / "bit"), tmp_path / "bit.npz", "npz").compared_with
    assert "; not checked independently: file:" in said
    assert "there is no reference forward pass for google BiT" in said


def test_options_and_names_that_the_reference_lacks_are_declined() -> None:
    images = torch.zeros(1, 3, 32, 32)
    for options in ("position=sincos-2d", "position_at=every-layer"):
        with pytest.raises(NoReferenceError, match="forward pass has no position"):
            run_reference("bigvision", {}, {}, parse(f"{TINY},{options}"), images)
    with pytest.raises(NoReferenceError, match=r"no tensor 'patch_embed\.proj\.weight'"):
        run_reference("timm", {}, {}, parse(TINY), images)
