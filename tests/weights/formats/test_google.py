"""Google's, big_vision's and BiT's npz files: known, read and written back bit for bit.

The golden files come from the official code. Covers also the spellings, prefixes and stackings of
published files, and that timm reads what is written.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.golden.reader import images
from tests.golden.reader import spec as golden_spec
from tests.parity.peers import load
from tests.weights.google_files import (
    MODELS,
    assert_same,
    golden,
    home,
    identify,
    numbered,
    older,
    published,
    read,
    rooted,
    save,
    scanned,
    tensorflow,
    written,
)
from vitrail.models import BiTSpec, HybridSpec, ViTSpec, build
from vitrail.weights.formats.bigvision import BIGVISION
from vitrail.weights.formats.bit_tf import BIT_TF
from vitrail.weights.formats.format import Format
from vitrail.weights.formats.google import GOOGLE
from vitrail.weights.formats.keymap import write_table
from vitrail.weights.formats.timm.timm import TIMM


@pytest.mark.parametrize("name", MODELS)
def test_golden_files_say_their_format_and_spec(name: str) -> None:
    format, spec = identify(golden(name))
    wanted = golden_spec(name)
    assert format is home(name)
    if isinstance(spec, BiTSpec) or spec.position == "sincos-2d":  # no file says their resolution
        assert spec.image == (224, 224)
        spec = replace(spec, image=wanted.image)
    assert spec == wanted
    assert identify(golden(name), wanted.image) == (format, wanted)


@pytest.mark.parametrize("name", MODELS)
def test_golden_files_give_the_official_logits(name: str) -> None:
    spec = golden_spec(name)
    ours, left_out = read(home(name), spec, golden(name))
    model = build(spec).eval()
    model.load_state_dict(ours)
    x, outputs = images(name)
    with torch.no_grad():
        logits = model(x)
    assert left_out == {}
    assert (logits - outputs["logits"]).abs().max() <= 1e-5 * outputs["logits"].abs().max()


@pytest.mark.parametrize("name", MODELS)
def test_written_files_are_the_files_that_were_read(name: str) -> None:
    table = home(name).table(golden_spec(name))
    ours, _ = read(home(name), golden_spec(name), golden(name))
    assert_same(write_table(table, ours), written(name))


@pytest.mark.parametrize("root", ["", "params/", "opt/target/"])
@pytest.mark.parametrize("name", [name for name in MODELS if name != "bigvision-bit"])
def test_other_spellings_read_the_same(name: str, root: str) -> None:
    spec = golden_spec(name)
    wanted, _ = read(home(name), spec, golden(name))
    plain = golden(name)
    variants = [plain, older(plain)]
    if home(name) is GOOGLE:
        variants.append(published(plain))
    else:
        variants.append(scanned(plain))
    for variant in variants:
        file = rooted(variant, root)
        format, found = identify(file)
        assert format is home(name)
        assert replace(found, image=spec.image) == spec
        ours, left_out = read(format, spec, file)
        assert left_out == {}
        assert_same(ours, wanted)


def test_a_long_stage_of_a_bit_is_known() -> None:
    spec = BiTSpec(stages=(1, 11), width=32)
    table = GOOGLE.table(spec)
    file = {part.key: torch.empty(part.shape, device="meta") for e in table for part in e.parts}
    assert file["block2/unit11/gn3/bias"].shape == (1, 1, 1, 64)
    assert identify(file) == (GOOGLE, spec)
    assert read(GOOGLE, spec, file)[0]["blocks.11.norm3.bias"].shape == (64,)


def test_bit_reads_with_a_prefix() -> None:
    spec = golden_spec("bigvision-bit")
    file = rooted(golden("bigvision-bit"), "params/")
    format, found = identify(file)
    assert (format, replace(found, image=spec.image)) == (GOOGLE, spec)
    assert_same(
        write_table(BIGVISION.table(spec), read(GOOGLE, spec, file)[0]), golden("bigvision-bit")
    )


def test_image_tower_of_two_leaves_the_texts_out() -> None:
    spec = golden_spec("bigvision-vit-map")
    image = {k: v for k, v in golden("bigvision-vit-map").items() if not k.startswith("head/")}
    file = rooted(image, "params/img/")
    more = ("params/txt/Encoder_0/kernel", "params/t", "params/b", "opt/0/count", "chrono/steps")
    file |= {key: torch.zeros(1) for key in more}
    format, found = identify(file)
    assert (format, found) == (BIGVISION, replace(spec, classes=0))
    ours, left_out = read(format, found, file)
    assert left_out.keys() == set(more)
    assert left_out["params/txt/Encoder_0/kernel"] == "the text tower, not part of an image model"
    assert left_out["opt/0/count"] == "training state, not part of the model"
    assert_same(write_table(format.table(found), ours), image)


def test_tensorflow_bit_reads_and_writes() -> None:
    spec = golden_spec("bigvision-bit")
    assert isinstance(spec, BiTSpec)
    file = tensorflow(golden("bigvision-bit"))
    assert file["resnet/block2/unit02/c/standardized_conv2d/kernel"].shape == (1, 1, 64, 256)
    assert file["resnet/head/conv2d/kernel"].shape == (1, 1, 1024, 7)
    wanted, _ = read(GOOGLE, spec, golden("bigvision-bit"))
    zeros = replace(spec, pool_padding="zeros", image=(224, 224))  # as its own code pools
    for variant in (file, numbered(file)):
        assert identify(variant) == (BIT_TF, zeros)
        ours, left_out = read(BIT_TF, zeros, variant)
        assert left_out == {}
        assert_same(ours, wanted)
        assert_same(write_table(BIT_TF.table(zeros), ours), file)


@pytest.mark.parametrize("format", [GOOGLE, BIGVISION])
@pytest.mark.parametrize("classes", [0, 3])
def test_models_of_other_shapes_go_there_and_back(format: Format, classes: int) -> None:
    spec = ViTSpec(
        depth=1,
        width=32,
        heads=4,
        mlp=40,
        patch=(4, 8),
        image=(12, 24),
        channels=5,
        classes=classes,
        representation=24,
        class_position=format is GOOGLE,
    )
    ours = {name: torch.randn(p.shape) for name, p in build(spec).named_parameters()}
    theirs = write_table(format.table(spec), ours)
    assert identify(theirs) == (format, spec)
    assert_same(read(format, spec, theirs)[0], ours)


def test_a_published_hybrid_is_known() -> None:
    """R50+ViT-B/16 has stages of 3, 4 and 9 blocks and a grid of 14 by 14; one block more here."""
    spec = HybridSpec(depth=2, width=128, heads=2, mlp=64, stages=(3, 4, 10))
    table = GOOGLE.table(spec)
    file = {part.key: torch.empty(part.shape, device="meta") for e in table for part in e.parts}
    assert file["block3/unit9/conv3/kernel"].shape == (1, 1, 256, 1024)
    assert published(file)["block3/unit10/gn3/bias"].shape == (1, 1, 1, 1024)
    assert identify(published(file)) == (GOOGLE, spec)
    ours, _ = read(GOOGLE, spec, published(file))
    assert ours["stem.blocks.16.norm3.bias"].shape == (1024,)


@pytest.mark.parametrize(
    ("name", "root", "options"),
    [
        ("google-vit", "", {"depth": 3}),
        ("bigvision-vit-map", "params/", {"class_token": False, "global_pool": "map"}),
    ],
)
def test_timm_reads_what_is_written(
    name: str, root: str, options: dict[str, Any], tmp_path: Path
) -> None:
    """Timm's reader of Google's files makes the same of ours as our table of timm's names."""
    vit = load("timm.models.vision_transformer").VisionTransformer
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 2, "mlp_ratio": 2}
    peer = vit(**{**sizes, **options}, num_heads=3, num_classes=7)
    spec = golden_spec(name)
    ours, _ = read(home(name), spec, golden(name))
    theirs = rooted(write_table(home(name).table(spec), ours), root)
    peer.load_pretrained(save(tmp_path, theirs))
    assert_same(read(TIMM, spec, peer.state_dict())[0], ours)


def test_timm_reads_a_tensorflow_bit_that_is_written(tmp_path: Path) -> None:
    resnet = load("timm.models.resnetv2")
    layers = {name: getattr(load("timm.layers"), name) for name in ("GroupNormAct", "StdConv2d")}
    peer = resnet.ResNetV2(
        layers=[1, 2, 1, 1],
        channels=[128, 256, 512, 1024],
        num_classes=7,
        stem_chs=32,
        stem_type="fixed",
        norm_layer=layers["GroupNormAct"],
        conv_layer=layers["StdConv2d"],
    )
    file = tensorflow(golden("bigvision-bit"))
    format, spec = identify(file)
    ours, _ = read(format, spec, file)
    peer.load_pretrained(save(tmp_path, write_table(format.table(spec), ours)))
    assert_same(read(TIMM, spec, peer.state_dict())[0], ours)
    model = build(spec).eval()
    model.load_state_dict(ours)
    x, _ = images("bigvision-bit")
    with torch.no_grad():
        logits, wanted = model(x), peer.eval()(x)
    # Their standardization adds another epsilon; other padding is off by 1e-2.
    assert (logits - wanted).abs().max() <= 1e-4 * wanted.abs().max()
