"""Every timm architecture of the ViT-like modules, with random weights: equal, or refused.

Blocks are cut to two where the entry allows it. A model that is read and gives other logits than
timm's is the one outcome that must not be: a refusal says why. Each is compared at its own size and
at another, which is not square, with other weights.
"""

import json
import re
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.cases import slow_but
from tests.parity import peers
from vitrail.config import InputError
from vitrail.weights.files.tensor_files import weights_in_memory
from vitrail.weights.formats.timm.timm_architectures import RESNETS, VITS
from vitrail.weights.load import read_weights
from vitrail.weights.sources.resolved import Resolved

timm = peers.load("timm")

MODULES = (
    *("vision_transformer", "vision_transformer_hybrid", "deit", "eva", "beit", "naflexvit"),
    *("vision_transformer_relpos", "resnetv2"),
)
NAMES = [name for module in MODULES for name in timm.list_models(module=module)]
WIDE = (
    *("x2", "x3", "x4", "1b", "3b", "5b", "7b", "giant", "gigantic", "huge", "enormous"),
    *("so400m", "large", "1024"),
)
NARROW = [name for name in NAMES if not any(word in name for word in (*WIDE, "512", "448", "518"))]
QUICK = """
    test_vit test_vit2 test_vit4 vit_tiny_patch16_384 vit_base_patch16_224_miil
    vit_base_patch16_gap_224 vit_base_patch16_siglip_512 vit_so400m_patch14_siglip_224
    vit_base_patch16_rpn_224 vit_small_patch14_reg4_dinov2 vit_base_patch14_reg1_tipsv2
    vit_dwee_patch16_reg1_gap_256 vit_base_patch32_clip_384 vit_base_mci_224 vit_small_r26_s32_224
    deit_tiny_distilled_patch16_224 deit3_small_patch16_224 eva02_tiny_patch14_336
    vit_pe_core_tiny_patch16_384 vit_small_patch16_rope_224 vit_small_patch16_rope_ape_224
    vit_small_patch16_rope_mixed_224 vit_mediumd_patch16_rope_reg1_gap_256
    vit_small_plus_patch16_dinov3_qkvb vit_base_patch16_sapiens2 beit_base_patch16_384
    beit3_base_patch16_224 naflexvit_base_patch16_map naflexvit_base_patch16_siglip
    vit_relpos_small_patch16_224 vit_srelpos_small_patch16_224 resnetv2_50x1_bit
    resnetv2_34 resnetv2_50d_gn vit_small_resnet50d_s16_224
"""
"""One of each family, which run each time; the others are slow."""
CASES = slow_but(QUICK.split(), NAMES)
ALSO = ["vit_base_mci_224", "vit_tiny_r_s16_p8_224", "naflexvit_base_patch16_siglip"]
WIDE_CASES = slow_but((*ALSO, *NARROW[1::24]), [name for name in NAMES if name in VITS])


def build_timm(
    name: str, *, known: bool, size: list[int] | None = None, seed: int = 0
) -> tuple[Any, dict[str, Any]]:
    """Build timm's model, as shallow as its entry allows, and say its arguments.

    One that is to be refused gets no memory: some have five billion parameters.
    """
    heads = VITS.get(name, ("", 0))[1]
    sized = {} if size is None else {"img_size": size}
    shared = {"depth": 3, "num_kv_heads": [heads, heads // 2, heads], "img_size": size or [64, 96]}
    for arguments in ({"depth": 2, **sized}, {"depth": 2}, {"layers": (1, 1, 1, 1)}, shared, {}):
        try:
            with torch.device("cpu" if known else "meta"):
                model = timm.create_model(name, **arguments)
        except (TypeError, AssertionError):  # no such argument, or a list of all blocks
            continue
        return peers.randomize(model, torch.float32, seed) if known else model, arguments
    raise AssertionError(f"timm can't build {name}")


def stride(spec: Any) -> tuple[int, int]:
    return getattr(spec, "stride", (1, 1))


def read(name: str, model: Any, arguments: dict[str, Any]) -> Any:
    """Read timm's weights as from a folder of the hub, with the config that timm writes."""
    said = {key: value for key, value in model.pretrained_cfg.items() if value is not None}
    config = {"architecture": name, "model_args": arguments, "pretrained_cfg": said}
    config["global_pool"] = getattr(model, "global_pool", None)
    file = weights_in_memory(model.state_dict(), name)
    found = Resolved(f"timm:{name}", Path(name), json.loads(json.dumps(config)))
    return read_weights(file, found, hashed=False)


@pytest.mark.parametrize("name", CASES)
def test_equal_or_refused(name: str) -> None:
    known = name in VITS or name in RESNETS
    model, arguments = build_timm(name, known=known)
    if not known:
        with pytest.raises(InputError, match=r"\w+ \w+") as caught:
            read(name, model, arguments)
        assert "\n" not in str(caught.value)
        return
    checkpoint = read(name, model, arguments)
    size = arguments.get("img_size", model.pretrained_cfg["input_size"][1:])
    images = torch.randn(1, 3, *size, generator=torch.Generator().manual_seed(1))
    height, width = (
        side // step * step for side, step in zip(size, stride(checkpoint.spec), strict=True)
    )
    with torch.no_grad():
        theirs = model(images)
        ours = checkpoint.build()(images[:, :, :height, :width])  # whole patches, as timm cuts
    assert ours.shape == theirs.shape
    off = ((ours - theirs).abs().max() / theirs.abs().max()).item()
    assert off <= 2e-5, f"{name} differs by {off:.1e}"


def patch_side(name: str) -> int:
    """Give the pixels that a token of an architecture stands for."""
    if "_r_s16_p8" in name:
        return 32
    found = re.search(r"patch(\d+)|_s(\d+)_", name)
    return 16 if found is None else int(found[1] or found[2])


@pytest.mark.parametrize("name", WIDE_CASES)
def test_equal_at_another_size(name: str) -> None:
    """Each has a seed of its own, and a grid that is not square."""
    seed, side = zlib.crc32(name.encode()), patch_side(name)
    size = [(3 + seed % 3) * side, (6 + seed // 3 % 3) * side]
    model, arguments = build_timm(name, known=True, size=size, seed=seed)
    ours = read(name, model, arguments).build()
    images = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        theirs = model(images)
        off = ((ours(images) - theirs).abs().max() / theirs.abs().max()).item()
    assert off <= 2e-5, f"{name} differs by {off:.1e} at {size}"


FAMILIES = """
    vit_tiny_patch16_224 vit_base_patch16_xp_224 vit_base_patch16_clip_224 vit_base_patch16_gap_224
    vit_base_patch16_clip_quickgelu_224 vit_base_patch16_siglip_256 vit_small_patch14_dinov2
    deit_tiny_distilled_patch16_224 vit_dwee_patch16_reg1_gap_256 vit_relpos_small_patch16_rpn_224
    beit_base_patch16_224 beit3_base_patch16_224 eva02_tiny_patch14_224 vit_small_patch16_dinov3
    vit_pe_core_base_patch16_224 vit_base_patch16_sapiens2 aimv2_large_patch14_224
    naflexvit_base_patch16_siglip vit_tiny_r_s16_p8_224 vit_small_patch16_rope_mixed_224
"""
CHANGED = slow_but(FAMILIES.split(), VITS)


def build_changed(name: str) -> tuple[Any, dict[str, Any]]:
    """Build an architecture with other arguments; as small as it goes, but with other heads.

    Tokens and their first changes are so small that a norm's epsilon decides.
    """
    side = patch_side(name)
    usual = VITS[name][1]
    heads = {"embed_dim": 96, "num_heads": 3 if usual != 3 else 6}
    size = {"img_size": [2 * side, 3 * side]}
    kv = {"depth": 3, "num_kv_heads": [heads["num_heads"]] * 3}
    for arguments in (
        {**heads, **size, "depth": 2}, {**heads, **size, **kv}, {**heads, "depth": 2},
        {**size, "depth": 2}, {"depth": 2},
    ):  # fmt: skip
        try:
            model = timm.create_model(name, **arguments)
        except (TypeError, AssertionError, ValueError, RuntimeError):
            continue
        peers.randomize(model, torch.float32, zlib.crc32(name.encode()))
        with torch.no_grad():
            for key, parameter in model.named_parameters():
                if not re.search(r"norm|^head|^attn_pool|backbone", key) and parameter.ndim > 1:
                    parameter.mul_(1e-3)
        return model, arguments
    raise AssertionError(f"timm can't build {name}")


@pytest.mark.parametrize("name", CHANGED)
def test_what_no_tensor_shows_is_the_architectures(name: str) -> None:
    """Epsilon, GELU, heads, pooling, rotary numbers, with other arguments and a sparse config."""
    model, arguments = build_changed(name)
    config = {"architecture": name, "model_args": arguments}
    config["pretrained_cfg"] = {"input_size": model.pretrained_cfg["input_size"]}
    if "img_size" not in arguments:
        config["model_args"] = {**arguments, "img_size": model.pretrained_cfg["input_size"][1:]}
    file = weights_in_memory(model.state_dict(), name)
    found = Resolved(f"timm:{name}", Path(name), json.loads(json.dumps(config)))
    checkpoint = read_weights(file, found, hashed=False)
    size = config["model_args"]["img_size"]
    images = torch.randn(1, 3, *size, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        theirs, ours = model(images), checkpoint.build()(images)
    off = ((ours - theirs).abs().max() / theirs.abs().max()).item()
    assert off <= 2e-5, f"{name} differs by {off:.1e}"


def test_some_of_each_module_run_each_time() -> None:
    assert all(set(QUICK.split()) & set(timm.list_models(module=module)) for module in MODULES)
    assert set(QUICK.split()) <= set(NAMES)
    assert {*VITS, *RESNETS} <= set(NAMES)


def test_most_published_weights_load() -> None:
    """At least 95 % of the architectures that timm has weights of, and of these weights."""
    weights = [name for name in timm.list_pretrained() if name.partition(".")[0] in NAMES]
    known = [name for name in weights if name.partition(".")[0] in {*VITS, *RESNETS}]
    assert len(known) >= 0.95 * len(weights)
    there, ours = ({name.partition(".")[0] for name in names} for names in (weights, known))
    assert len(ours) >= 0.95 * len(there), sorted(there - ours)
