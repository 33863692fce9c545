"""Published checkpoints of the ViT's successors, as timm and transformers hold them.

DINOv3, SigLIP 2, CLIP, EVA-02, Perception Encoder, timm's small ViTs with registers, NaFlex, BEiT
v2, DeiT III, AIMv2, MobileCLIP.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from vitrail.data.transforms.preprocess import IMAGENET_MEAN, IMAGENET_STD, Fit, Preprocess
from vitrail.weights.published.published_weights import PublishedWeights, published

_HALF = (0.5, 0.5, 0.5)
_IMAGENET = IMAGENET_MEAN, IMAGENET_STD
_CLIP = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
_SATELLITE = (0.430, 0.411, 0.296), (0.213, 0.156, 0.143)
_README = "timm README"
DINOV3_LICENSE = "DINOv3 License"
"""Meta's own (ai.meta.com/resources/models-and-libraries/dinov3-license): not Apache-2.0; it allows
commercial use, forbids some uses, and has to be passed on with the weights."""
_GATED = "gated: accept the DINOv3 License on its page at huggingface.co, then `hf auth login`"


def successors() -> Iterator[PublishedWeights]:
    """List them, the most asked for first."""
    yield from _dinov3()
    yield from _siglip2()
    yield from _small()
    yield from _eva02()
    yield from _perception()
    yield from _clip()
    yield from _classifiers()
    yield from _apple()


def _preprocess(
    size: int,
    statistics: tuple[tuple[float, ...], tuple[float, ...]] = (_HALF, _HALF),
    crop: float = 1.0,
    fit: Fit = "crop",
) -> Preprocess:
    mean, std = statistics
    return Preprocess(
        size=(size, size), mean=mean, std=std, interpolation="bicubic", fit=fit, crop=crop
    )


def _dinov3() -> Iterator[PublishedWeights]:
    """List DINOv3: timm's copies are open to all, Meta's own are gated; both have its license."""
    rotary = "classes=0,registers=4,position=none,rotary=centered,rotary_theta=100.0"
    rotary += ",layer_scale={},norm_eps=1e-05"
    shapes = {
        "small": ("ViT-S/16", "vits16", "gelu"),
        "small_plus": ("ViT-S/16", "vits16plus", "swiglu"),
        "base": ("ViT-B/16", "vitb16", "gelu"),
        "large": ("ViT-L/16", "vitl16", "gelu"),
        "huge_plus": (*("ViT/16{},depth=32,width=1280,heads=20,mlp=5120", "vith16plus", "swiglu"),),
        "7b": ("ViT/16{},depth=40,width=4096,heads=32,mlp=8192", "vit7b16", "swiglu"),
    }
    for size, (model, name, activation) in shapes.items():
        at = model if "{}" in model else f"{model}{{}}"
        options = f"position_resize=timm,activation={activation},qkv_bias=false"
        options = f"{rotary.format('1e-05')},pool=gap,unpooled_class_token=true,{options}"
        ours = f"{at.format('@256')},{options}"
        for data in ("LVD-1689M", "SAT-493M") if size in ("large", "7b") else ("LVD-1689M",):
            tag, sat = data.lower().replace("-", ""), data.startswith("SAT")
            image = _preprocess(256, _SATELLITE if sat else _IMAGENET)
            source = f"timm:vit_{size}_patch16_dinov3.{tag}"
            yield published(source, ours, data, image, use="features", license=DINOV3_LICENSE)
            theirs = f"{at.format('')},{rotary.format('1.0')},position_resize=huggingface"
            theirs += f",activation={activation},key_bias=false"
            image = _preprocess(224, _SATELLITE if sat else _IMAGENET, fit="stretch")
            image = replace(image, interpolation="bilinear")
            source = f"hf:facebook/dinov3-{name}-pretrain-{tag}"
            yield published(
                source, theirs, data, image, use="features", license=DINOV3_LICENSE, access=_GATED
            )


def _siglip2() -> Iterator[PublishedWeights]:
    scores = {"B/16": {224: 78.2, 256: 79.1, 384: 80.6, 512: 81.2}, "B/32": {256: 74.0}}
    scores |= {"L/16": {256: 82.5, 384: 83.1, 512: 83.5}, "So400m/14": {224: 83.2}}
    scores |= {"So400m/16": {256: 83.4, 384: 84.1, 512: 84.3}}
    cited = "SigLIP 2 README, zero-shot"
    options = "classes=0,pool=map"
    for model, sizes in scores.items():
        letter, _, patch = model.partition("/")
        word = {"B": "base", "L": "large", "So400m": "so400m"}[letter]
        for size, top1 in sizes.items():
            name = f"ViT-{model}" + ("" if size == 224 else f"@{size}")
            source = f"hf:google/siglip2-{word}-patch{patch}-{size}"
            image = replace(_preprocess(size, fit="stretch"), interpolation="bilinear")
            full = f"{name},{options},position_resize=huggingface"
            yield published(source, full, "WebLI", image, top1, cited, use="zero-shot")
    for word, letter, top1 in (("base", "B", 78.5), ("so400m", "So400m", 83.5)):
        image = replace(_preprocess(256, fit="stretch"), interpolation="bilinear", patches=256)
        full = f"ViT-{letter}/16@256,{options},position_resize=siglip2"
        source = f"hf:google/siglip2-{word}-patch16-naflex"
        told = f"{cited}, 256 patches"
        yield published(source, full, "WebLI", image, top1, told, use="zero-shot")


def _small() -> Iterator[PublishedWeights]:
    """List timm's ViTs between S and B with registers, and its NaFlex ViT-B."""
    options = "pool=gap,registers=4,position_resize=timm,activation=gelu,last_norm=pooled"
    options += ",layer_scale=1e-05"
    shapes = {"medium": (12, 512, 8, 2048), "mediumd": (20, 512, 8, 2048)}
    shapes["betwixt"] = (12, 640, 10, 2560)
    scores = (
        ("medium", 256, "sbb_in12k_ft_in1k", 84.930),
        ("mediumd", 256, "sbb2_e200_in12k_ft_in1k", 86.608),
        ("mediumd", 384, "sbb2_e200_in12k_ft_in1k", 87.438),
        ("betwixt", 256, "sbb2_e200_in12k_ft_in1k", 85.734),
        ("betwixt", 384, "sbb2_e200_in12k_ft_in1k", 86.594),
    )
    for word, size, tag, top1 in scores:
        depth, width, heads, mlp = shapes[word]
        model = f"ViT/16@{size},depth={depth},width={width},heads={heads},mlp={mlp},{options}"
        source = f"timm:vit_{word}_patch16_reg4_gap_{size}.{tag}"
        image = _preprocess(size, crop=0.95 if size == 256 else 1.0)
        yield published(source, model, "ImageNet-12k, ImageNet-1k", image, top1, _README)
    for word, rule, top1 in (
        ("gap", "position_resize=timm", 83.50),
        ("par_gap", "position_resize=timm-square", 83.67),
        ("parfac_gap", "position=factorized,position_resize=timm-square", 83.63),
    ):
        model = f"ViT-B/16@256,{options.replace('position_resize=timm', rule)}"
        model += ",class_position=false" if "factorized" in rule else ""
        source = f"timm:naflexvit_base_patch16_{word}.e300_s576_in1k"
        cited = f"{_README}, 576 patches"
        image = replace(_preprocess(384), patches=576)
        yield published(source, model, "ImageNet-1k", image, top1, cited)


def _eva02() -> Iterator[PublishedWeights]:
    options = "pool=gap,unpooled_class_token=true,position_resize=timm,rotary=axial,rotary_grid=16"
    options += ",activation=swiglu,key_bias=false,last_norm=pooled"
    rows = (
        ("tiny_patch14_336.mim_in22k_ft_in1k", "12,192,3,512", "", 80.658),
        ("small_patch14_336.mim_in22k_ft_in1k", "12,384,6,1024", "", 85.74),
        ("base_patch14_448.mim_in22k_ft_in22k_in1k", "12,768,12,2048", ",sub_norm=mlp", 88.692),
        ("large_patch14_448.mim_m38m_ft_in22k_in1k", "24,1024,16,2730", ",sub_norm=mlp", 90.054),
    )
    for name, shape, more, top1 in rows:
        size = int(name.partition(".")[0][-3:])
        depth, width, heads, mlp = shape.split(",")
        model = f"ViT/14@{size},depth={depth},width={width},heads={heads},mlp={mlp},{options}{more}"
        data = "Merged-38M" if "m38m" in name else "ImageNet-22k"
        tuned = "ImageNet-22k, ImageNet-1k" if "ft_in22k" in name else "ImageNet-1k"
        data = f"{data}, {tuned}" if data != tuned.partition(",")[0] else tuned
        image = _preprocess(size, _CLIP, fit="stretch" if size == 448 else "crop")
        source = f"timm:eva02_{name}"
        yield published(source, model, data, image, top1, _README, license="MIT")


def _perception() -> Iterator[PublishedWeights]:
    """List PE core; its text towers are not in timm's files."""
    options = "pool=map,position_resize=timm,rotary=axial-xy,patch_bias=false,pre_norm=true"
    options += ",activation=gelu,norm_eps=1e-05,pool_heads=8"
    token = "unpooled_class_token=true,pool_prefix=true,rotary_offset=1.0"
    rows = (
        ("base_patch16_224", f"ViT-B/16,classes=1024,rotary_grid=14,{token}", 78.4),
        ("large_patch14_336", f"ViT-L/14@336,classes=1024,rotary_grid=24,{token}", 83.5),
        (
            "gigantic_patch14_448",
            "ViT/14@448,depth=50,width=1536,heads=16,mlp=8960,classes=1280,rotary_grid=32,"
            "pool_mlp=6144",
            85.4,
        ),
    )
    for name, model, top1 in rows:
        image = _preprocess(int(name[-3:]))
        cited, data = "Perception Encoder README, zero-shot", "web images with text"
        source = f"timm:vit_pe_core_{name}.fb"
        full = f"{model},{options}"
        yield published(source, full, data, image, top1, cited, use="features")


def _clip() -> Iterator[PublishedWeights]:
    """List OpenAI's CLIP; its code's license, as its model cards state none."""
    options = "position_resize=huggingface,patch_bias=false,pre_norm=true,activation=quick-gelu"
    options += ",norm_eps=1e-05,head_bias=false"
    rows = (
        ("base-patch32", "ViT-B/32,classes=512", 63.2),
        ("base-patch16", "ViT-B/16,classes=512", 68.6),
        ("large-patch14", "ViT-L/14,classes=768", 75.3),
        ("large-patch14-336", "ViT-L/14@336,classes=768", 76.2),
    )
    for name, model, top1 in rows:
        image = _preprocess(336 if name.endswith("336") else 224, _CLIP)
        full, source = f"{model},{options}", f"hf:openai/clip-vit-{name}"
        told, data = "CLIP paper, Table 11, zero-shot", "web images with text"
        yield published(source, full, data, image, top1, told, license="MIT", use="zero-shot")


def _classifiers() -> Iterator[PublishedWeights]:
    """List BEiT v2 and DeiT III."""
    beit = "pool=gap,unpooled_class_token=true,position=relative-2d,position_at=every-layer"
    beit += ",position_resize=timm,activation=gelu,key_bias=false,last_norm=pooled"
    deit = "position_resize=timm,class_position=false,activation=gelu"
    first, second = "beitv2_{}.in1k_ft_in22k_in1k", "deit3_{}.fb_in22k_ft_in1k"
    rows = (
        (first.format("base_patch16_224"), f"ViT-B/16,{beit}", 0.9, 86.474),
        (first.format("large_patch16_224"), f"ViT-L/16,{beit}", 0.95, 88.394),
        (second.format("base_patch16_224"), f"ViT-B/16,{deit}", 1.0, 85.700),
        (second.format("base_patch16_384"), f"ViT-B/16@384,{deit}", 1.0, 86.738),
        (second.format("large_patch16_384"), f"ViT-L/16@384,{deit}", 1.0, 87.720),
    )
    for name, model, crop, top1 in rows:
        image = _preprocess(384 if "_384" in name else 224, _IMAGENET, crop)
        own = "ImageNet-1k, ImageNet-22k, ImageNet-1k"
        data = own if name.startswith("beit") else "ImageNet-22k, ImageNet-1k"
        full = f"{model},layer_scale=1e-05"
        yield published(f"timm:{name}", full, data, image, top1, "timm's results-imagenet.csv")


def _apple() -> Iterator[PublishedWeights]:
    """List Apple's AIMv2 and MobileCLIP, which have licenses of Apple's own."""
    aim = "pool=gap,position_resize=timm,patch_norm=true,activation=swiglu,qkv_bias=false"
    aim = f"ViT/14,depth=24,width=1024,heads=8,mlp=2816,classes=0,{aim},dense_bias=false"
    aim += ",norm=rms,norm_eps=1e-05"
    clip = "Hybrid-B/2,classes=512,position_resize=timm,class_position=false,activation=gelu"
    clip += ",stem=mobileclip,stem_width=192"
    zeros_ones = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    rows = (
        ("aimv2_large_patch14_224.apple_pt", aim, _preprocess(224, _CLIP), "Apple ASCL"),
        ("vit_base_mci_224.apple_mclip", clip, _preprocess(224, zeros_ones, 0.9), "Apple AMLR"),
    )
    for name, model, image, license in rows:
        data = "web images with text"
        yield published(f"timm:{name}", model, data, image, use="features", license=license)
