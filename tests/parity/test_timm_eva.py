"""timm's Eva class and the newer options of its VisionTransformer, tiny, with random weights.

Read and written, at square and other sizes; in float64 too, and gradients.
"""

import json
from typing import Any

import pytest
import torch

from tests.parity import peers
from tests.parity.timm_models import TINY, assert_equal, images, read
from vitrail.config import InputError
from vitrail.models import parse
from vitrail.models.cost.total import cost_of
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.formats.format import FileFacts
from vitrail.weights.formats.keymap import write_table
from vitrail.weights.formats.timm.timm import TIMM
from vitrail.weights.formats.timm.timm_config import write_timm_config

timm = peers.load("timm")

SIZES = {"square": (64, 64), "wide": (48, 80)}
EVAS = [
    *("eva_giant_patch14_224", "eva02_tiny_patch14_224", "eva02_base_patch14_224"),
    *("eva02_base_patch16_clip_224", "eva02_enormous_patch14_clip_224"),
    *("vit_small_patch16_rope_224", "vit_small_patch16_rope_ape_224"),
    *("vit_small_patch16_rope_mixed_224", "vit_small_patch16_rope_mixed_ape_224"),
    *("vit_medium_patch16_rope_reg1_gap_256", "vit_mediumd_patch16_rope_reg1_gap_256"),
    *("vit_small_patch16_dinov3", "vit_base_patch16_dinov3_qkvb", "vit_huge_plus_patch16_dinov3"),
    *("vit_small_patch16_lingbot", "vit_pe_core_base_patch16_224"),
    *("vit_pe_core_gigantic_patch14_448", "vit_pe_lang_large_patch14_448"),
    *("vit_pe_spatial_gigantic_patch14_448", "beit_base_patch16_224"),
    "vit_base_patch16_sapiens2",
]
VITS = [
    *("vit_base_patch16_reg4_gap_256", "vit_so150m_patch16_reg4_gap_256", "test_vit3"),
    *("vit_so150m2_patch16_reg1_gap_256", "vit_so150m_patch16_reg4_map_256", "test_vit4"),
    *("beit3_base_patch16_224", "eva_large_patch14_196", "vit_base_patch16_rpn_224"),
    *("vit_intern300m_patch14_448", "aimv2_large_patch14_224"),
    *("vit_pwee_patch16_reg1_gap_256", "vit_dwee_patch16_reg1_gap_256"),
    *("vit_small_patch16_18x2_224", "vit_dpwee_patch16_reg1_gap_256"),
    *("vit_relpos_base_patch16_plus_240", "vit_relpos_small_patch16_224"),
    *("vit_relpos_medium_patch16_cls_224", "vit_relpos_base_patch16_clsgap_224"),
    *("vit_relpos_base_patch32_plus_rpn_256", "vit_srelpos_small_patch16_224"),
]


def make(name: str, size: tuple[int, int], dtype: torch.dtype) -> tuple[Any, dict[str, Any]]:
    arguments = {**TINY, "img_size": size, "patch_size": 16}
    if "sapiens2" in name:  # the first and the last block have keys for each head
        arguments |= {"depth": 3, "num_kv_heads": [3, 1, 3]}
    return peers.randomize(timm.create_model(name, **arguments), dtype), arguments


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("name", [*EVAS, *VITS])
def test_logits(name: str, size: tuple[int, int]) -> None:
    theirs, arguments = make(name, size, torch.float32)
    ours = read(name, theirs, arguments)
    assert parse(str(ours.spec)) == ours.spec
    with torch.no_grad():
        assert_equal(ours(images(size)), theirs(images(size)), 2e-5)
        if name.startswith("beit_"):  # timm fixes its size; offsets are resized by another rule
            return
        other = (96, 64)
        if "relpos" in name:  # whose offsets any size has its own of
            state = theirs.state_dict()
            theirs = make(name, other, torch.float32)[0]
            theirs.load_state_dict(state)
        else:
            theirs.set_input_size(other)
        assert_equal(ours(images(other)), theirs(images(other)), 2e-5)


@pytest.mark.parametrize(
    "name",
    [
        *("eva02_base_patch16_clip_224", "eva02_enormous_patch14_clip_224"),
        *("vit_small_patch16_rope_224", "vit_pe_core_base_patch16_224"),
        *("vit_huge_plus_patch16_dinov3", "test_vit4", "beit3_base_patch16_224"),
        *("beit_base_patch16_224", "aimv2_large_patch14_224", "vit_base_patch16_sapiens2"),
        *("vit_relpos_base_patch32_plus_rpn_256", "vit_srelpos_small_patch16_224"),
    ],
)
def test_float64_and_gradients(name: str) -> None:
    """A different epsilon, GELU or angle can't hide, in either direction."""
    size = SIZES["wide"]
    theirs, arguments = make(name, size, torch.float64)
    ours = read(name, theirs, arguments).double()
    x = images(size, torch.float64)
    ours_x, theirs_x = x.clone().requires_grad_(), x.clone().requires_grad_()
    ours(ours_x).square().sum().backward()
    theirs(theirs_x).square().sum().backward()
    assert ours_x.grad is not None
    assert theirs_x.grad is not None
    assert_equal(ours(x), theirs(x), 1e-10)
    assert_equal(ours_x.grad, theirs_x.grad, 1e-9)
    weight = theirs.get_parameter("patch_embed.proj.weight")
    assert ours.embedding.weight.grad is not None
    assert_equal(ours.embedding.weight.grad, weight.grad, 1e-9)


@pytest.mark.parametrize("name", [*EVAS, *VITS])
def test_written_back(name: str) -> None:
    """Timm builds the same model from what is written, with nothing missing or left over."""
    theirs, arguments = make(name, SIZES["wide"], torch.float32)
    ours = read(name, theirs, arguments)
    checkpoint = Checkpoint(spec=ours.spec, tensors=dict(ours.state_dict()))
    written = TIMM.denormalize(write_table(TIMM.table(ours.spec), checkpoint.tensors), ours.spec)
    state = theirs.state_dict()
    assert written.keys() == state.keys()
    assert all(torch.equal(written[key], state[key]) for key in state)
    config = json.loads(json.dumps(write_timm_config(ours.spec, None, None)))
    again = timm.create_model(
        config["architecture"], **config["model_args"], num_classes=ours.spec.classes
    )
    again.load_state_dict(written)
    with torch.no_grad():
        x = images(SIZES["wide"])
        assert_equal(again.eval()(x), theirs(x), 2e-5)


@pytest.mark.parametrize(
    "name",
    [
        *("eva02_tiny_patch14_224", "eva02_base_patch14_448", "eva02_enormous_patch14_clip_224"),
        *("vit_small_patch16_dinov3", "vit_7b_patch16_dinov3", "vit_huge_plus_patch16_dinov3_qkvb"),
        *("vit_pe_core_gigantic_patch14_448", "vit_small_patch16_rope_mixed_ape_224"),
        *("vit_so150m2_patch16_reg1_gap_256", "beit_large_patch16_512", "aimv2_3b_patch14_448"),
        *("vit_relpos_base_patch16_clsgap_224", "vit_srelpos_medium_patch16_224"),
        *("vit_5b_patch16_sapiens2", "vit_base_patch16_sapiens2"),
    ],
)
def test_parameters_are_timms(name: str) -> None:
    """Also of the largest, which are never built."""
    with torch.device("meta"):
        theirs = timm.create_model(name)
    shapes = {key: tuple(t.shape) for key, t in TIMM.normalize(theirs.state_dict()).items()}
    published = {"input_size": list(theirs.pretrained_cfg["input_size"])}
    spec = TIMM.infer(shapes, FileFacts({"architecture": name, "pretrained_cfg": published}))
    assert cost_of(spec).parameters == sum(weight.numel() for weight in theirs.parameters())


def test_learned_frequencies_have_timms_gradients() -> None:
    name = "vit_small_patch16_rope_mixed_224"
    theirs, arguments = make(name, SIZES["wide"], torch.float32)
    ours = read(name, theirs, arguments)
    for model in (ours, theirs):
        model(images(SIZES["wide"])).square().sum().backward()
    assert ours.rotary is not None
    assert ours.rotary.frequencies.grad is not None
    assert_equal(ours.rotary.frequencies.grad, theirs.rope.freqs.grad, 1e-4)


def test_a_file_that_hides_rotary_positions_is_refused() -> None:
    """Without a config nothing says whether there are any."""
    for name in ("eva02_base_patch14_224", "eva02_tiny_patch14_224"):
        with torch.device("meta"):
            theirs = timm.create_model(name)
        shapes = {key: tuple(t.shape) for key, t in theirs.state_dict().items()}
        with pytest.raises(InputError, match="which of timm's architectures"):
            TIMM.infer(shapes, FileFacts())
        with pytest.raises(InputError, match="rotary positions, which no tensor shows"):
            TIMM.infer(shapes, FileFacts(named=parse("ViT-B/14"), said=frozenset({"heads"})))
