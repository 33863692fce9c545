"""Published checkpoints as records: what each holds, how well it does, how it wants its images.

Accuracies are ImageNet top-1 in percent as their publishers state them; if nobody states one for
this very file, there is none. Torch is not imported.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from vitrail.config import InputError
from vitrail.data.transforms.preprocess import IMAGENET_MEAN, IMAGENET_STD, Preprocess
from vitrail.models.names import parse
from vitrail.weights.published.catalog_successors import successors
from vitrail.weights.published.published_weights import PublishedWeights, published

I21K, I1K, BOTH = "ImageNet-21k", "ImageNet-1k", "ImageNet-21k, ImageNet-1k"
_HALF = (0.5, 0.5, 0.5)
_README = "vision_transformer README"
_TIMM = "timm results-imagenet.csv"


def _google(size: int) -> Preprocess:
    return Preprocess(
        size=(size, size), mean=_HALF, std=_HALF, interpolation="bilinear", fit="stretch"
    )


def _timm(size: int) -> Preprocess:
    crop = 0.9 if size == 224 else 1.0
    image = (size, size)
    return Preprocess(
        size=image, mean=_HALF, std=_HALF, interpolation="bicubic", fit="crop", crop=crop
    )


def _timm_bit(size: int) -> Preprocess:
    image = (size, size)
    return Preprocess(size=image, mean=_HALF, std=_HALF, interpolation="bilinear", fit="crop")


_META = Preprocess(
    size=(224, 224),
    mean=IMAGENET_MEAN,
    std=IMAGENET_STD,
    interpolation="bicubic",
    fit="crop",
    crop=224 / 256,
)
"""DeiT, MAE, DINOv2: the short side to 256, the center 224."""


def _originals() -> Iterator[PublishedWeights]:
    """List the paper's own files; the heads of the ImageNet-21k ones are zero on purpose."""
    hybrid = ("R50+ViT-B/16", "R50+ViT-B_16", 768)
    widths = {"B": 768, "L": 1024}
    plain = [(f"ViT-{s}/{p}", f"ViT-{s}_{p}", widths[s]) for s in widths for p in (16, 32)]
    for model, file, width in (*plain, ("ViT-H/14", "ViT-H_14", 1280), hybrid):
        name = f"{model},classes=21843,representation={width}"
        yield published(f"google:imagenet21k/{file}", name, I21K, _google(224))
    tuned = "google:imagenet21k+imagenet2012"
    for model, file, _ in plain:
        yield published(f"{tuned}/{file}", f"{model}@384", BOTH, _google(384))
    name = f"{hybrid[0]}@384"
    cited = "vision_transformer issue 39"
    yield published(f"{tuned}/{hybrid[1]}", name, BOTH, _google(384), 85.08, cited)
    for size, top1 in (("B", 81.2), ("L", 82.7)):
        source = f"{tuned}/ViT-{size}_16-224"
        yield published(source, f"ViT-{size}/16", BOTH, _google(224), top1, _README)
    for patch in (16, 32):  # sharpness-aware minimization, arXiv 2106.01548
        yield published(f"google:sam/ViT-B_{patch}", f"ViT-B/{patch}", I1K, _google(224))


_AUGREG = {
    "Ti/16": ("Ti_16", "aug_none-wd_0.03-do_0.0-sd_0.0", "0.03", 78.22),
    "S/32": ("S_32", "aug_none-wd_0.1-do_0.0-sd_0.0", "0.01", 79.58),
    "S/16": ("S_16", "aug_light1-wd_0.03-do_0.0-sd_0.0", "0.03", 83.73),
    "B/32": ("B_32", "aug_light1-wd_0.1-do_0.0-sd_0.0", "0.01", 83.59),
    "B/16": ("B_16", "aug_medium1-wd_0.1-do_0.0-sd_0.0", "0.03", 85.49),
    "L/16": ("L_16", "aug_strong1-wd_0.1-do_0.0-sd_0.0", "0.01", 85.59),
    "R+Ti/16": ("R_Ti_16", "aug_none-wd_0.03-do_0.0-sd_0.0", "0.03", 75.40),
    "R26+S/32": ("R26_S_32", "aug_light1-wd_0.1-do_0.0-sd_0.0", "0.01", 83.85),
    "R50+L/32": ("R50_L_32", "aug_medium1-wd_0.1-do_0.1-sd_0.1", "0.01", 85.99),
}
"""The README's recommended files: the size, the regularization and the rate of fine-tuning at 384
that their names are made of, and the accuracy after it."""


def _augreg() -> Iterator[tuple[str, PublishedWeights]]:
    """List the recommended AugReg files, each with the short source that stands for it."""
    for name, (size, rules, rate, top1) in _AUGREG.items():
        stem, dash, rest = name.rpartition("+")
        model = f"{stem}{dash}ViT-{rest}"
        file = f"google:augreg/{size}-i21k-300ep-lr_0.001-{rules}"
        record = published(file, f"{model},classes=21843", I21K, _google(224))
        yield f"google:augreg/{name}", record
        file += f"--imagenet2012-steps_20k-lr_{rate}-res_384"
        record = published(file, f"{model}@384", BOTH, _google(384), top1, _README)
        yield f"google:augreg/{name}@384", record


def _bits() -> Iterator[PublishedWeights]:
    scores = {"50x1": 80.386, "101x1": 82.332, "50x3": 83.982, "101x3": 84.430}
    scores |= {"152x2": 84.468, "152x4": 84.936}
    options = "standardize=timm,pool_padding=zeros"
    for size, top1 in scores.items():
        name = f"BiT-R{size}"
        yield published(f"google:bit/BiT-M-R{size}", f"{name},classes=21843", I21K, _google(224))
        # 480 is BiT-HyperRule's size for ImageNet.
        tuned = f"google:bit/BiT-M-R{size}-ILSVRC2012"
        yield published(tuned, f"{name}@480", BOTH, _google(480))
        side = 480 if size == "152x4" else 448
        source = f"timm:resnetv2_{size}_bit.goog_in21k_ft_in1k"
        yield published(source, f"{name}@{side},{options}", BOTH, _timm_bit(side), top1, _TIMM)


_TIMM_VITS = (
    ("vit_tiny_patch16_224.augreg_in21k_ft_in1k", "ViT-Ti/16", 75.452),
    ("vit_small_patch16_224.augreg_in21k_ft_in1k", "ViT-S/16", 81.402),
    ("vit_base_patch16_224.augreg_in21k_ft_in1k", "ViT-B/16", 84.534),
    ("vit_base_patch16_384.augreg_in21k_ft_in1k", "ViT-B/16@384", 86.010),
    ("vit_large_patch16_384.augreg_in21k_ft_in1k", "ViT-L/16@384", 87.096),
    ("vit_small_r26_s32_384.augreg_in21k_ft_in1k", "R26+ViT-S/32@384", 84.066),
    ("vit_base_patch16_224.orig_in21k_ft_in1k", "ViT-B/16", 81.782),
    ("vit_base_patch16_384.orig_in21k_ft_in1k", "ViT-B/16@384", 84.212),
    ("vit_large_patch32_384.orig_in21k_ft_in1k", "ViT-L/32@384", 81.508),
    ("vit_base_r50_s16_384.orig_in21k_ft_in1k", "R50+ViT-B/16@384", 84.988),
    ("vit_base_patch16_224.sam_in1k", "ViT-B/16", 80.246),
    ("vit_tiny_patch16_224.augreg_in21k", "ViT-Ti/16,classes=21843", None),
    ("vit_small_patch16_224.augreg_in21k", "ViT-S/16,classes=21843", None),
    ("vit_base_patch16_224.augreg_in21k", "ViT-B/16,classes=21843", None),
    ("vit_large_patch16_224.augreg_in21k", "ViT-L/16,classes=21843", None),
    ("vit_base_patch16_224.orig_in21k", "ViT-B/16,classes=0", None),
    ("vit_large_patch16_224.orig_in21k", "ViT-L/16,classes=0", None),
    ("vit_huge_patch14_224.orig_in21k", "ViT-H/14,classes=0", None),
)
"""timm's own measurements of Google's weights, partly of other files than the README's."""


def _timms() -> Iterator[PublishedWeights]:
    for name, model, top1 in _TIMM_VITS:
        tag = name.partition(".")[2]
        data = I1K if tag == "sam_in1k" else BOTH if tag.endswith("in1k") else I21K
        options = ",activation=gelu,position_resize=timm"
        options += ",stem_norm_eps=1e-05,standardize=timm" if "+" in model else ""
        image = _timm(parse(model).image[0])
        yield published(f"timm:{name}", model + options, data, image, top1, _TIMM)


def _hugging_face() -> Iterator[PublishedWeights]:
    options = "activation=gelu,position_resize=huggingface,norm_eps=1e-12"
    for size, letter in (("base", "B"), ("large", "L")):
        for patch, side in ((16, 224), (16, 384), (32, 384)):
            name = f"ViT-{letter}/{patch}" + ("@384" if side == 384 else "")
            source = f"hf:google/vit-{size}-patch{patch}-{side}"
            yield published(source, f"{name},{options}", BOTH, _google(side))


def _meta() -> Iterator[PublishedWeights]:
    """List DeiT, MAE and DINOv2; the latter two are encoders, whose accuracy is that of a head."""
    timm = "activation=gelu,position_resize=timm"
    deit = (("tiny", "Ti", 72.2, 74.5), ("small", "S", 79.9, 81.2), ("base", "B", 81.8, 83.4))
    for size, letter, plain, distilled in deit:
        name, readme = f"ViT-{letter}/16,{timm}", "DeiT README"
        source = f"timm:deit_{size}_patch16_224.fb_in1k"
        yield published(source, name, I1K, _META, plain, readme)
        source = f"timm:deit_{size}_distilled_patch16_224.fb_in1k"
        yield published(source, f"{name},distilled=true", I1K, _META, distilled, readme)
    mae = (("base", "B/16", 83.6), ("large", "L/16", 85.9), ("huge", "H/14", 86.9))
    for size, model, top1 in mae:
        source = f"timm:vit_{size}_patch{model[2:]}_224.mae"
        name, cited = f"ViT-{model},classes=0,{timm}", "MAE README, after fine-tuning"
        yield published(source, name, I1K, _META, top1, cited, license="CC-BY-NC-4.0")
    giant = "ViT/14@518,depth=40,width=1536,heads=24,mlp=4096,activation=swiglu"
    models = {size: f"ViT-{size.upper()}/14@518,activation=gelu" for size in "sbl"} | {"g": giant}
    for (size, model), top1 in zip(models.items(), (81.1, 84.5, 86.3, 86.5), strict=True):
        name, cited = f"{model},classes=0,layer_scale=1e-05", "DINOv2 README, linear probe"
        source, data = f"dinov2:vit{size}14", "LVD-142M"
        yield published(source, name, data, _META, top1, cited, use="features")
        yield published(f"{source}_reg", f"{name},registers=4", data, _META, use="features")


RECOMMENDED: dict[str, str] = {short: record.source for short, record in _augreg()}
"""`google:augreg/B/16`, the recommended pre-training, and `google:augreg/B/16@384`, its fine-tuning
to ImageNet, with the file that each stands for."""

CATALOG: tuple[PublishedWeights, ...] = (
    *_originals(),
    *(record for _, record in _augreg()),
    *_timms(),
    *_hugging_face(),
    *_meta(),
    *_bits(),
    *successors(),
)
"""The checkpoints that `vitrail weights list` shows; `resolve` reaches many more."""

_BY_SOURCE = {record.source: record for record in CATALOG}


def find(source: str) -> PublishedWeights | None:
    """Look a source up, also by its short name or with its file's suffix."""
    source = RECOMMENDED.get(source, source)
    return _BY_SOURCE.get(source.removesuffix(".npz"))


def choose_augreg(index: Path, model: str, resolution: str | None) -> str:
    """Choose a file's name from AugReg's index: for a model, the best ImageNet-21k pre-training.

    With a resolution, that pre-training's best fine-tuning to ImageNet. Best is, as in the official
    code, by accuracy on held-out images.
    """
    try:
        with index.open(encoding="utf-8", newline="") as file:
            rows = [row for row in csv.DictReader(file) if row["ds"] == "i21k"]
        mine = [row for row in rows if row["name"] == model]
        if not mine:
            names = ", ".join(sorted({row["name"] for row in rows}))
            raise InputError(f"AugReg has no {model}; there are: {names}")
        best = max(mine, key=lambda row: float(row["final_val"]))["filename"]
        if resolution is None:
            return best
        wanted = (best, "imagenet2012", resolution)
        keys = ("filename", "adapt_ds", "adapt_resolution")
        tuned = [row for row in mine if tuple(row[key] for key in keys) == wanted]
        if not tuned:
            raise InputError(f"AugReg has no {model} fine-tuned to ImageNet at {resolution}")
        return max(tuned, key=lambda row: float(row["adapt_final_val"]))["adapt_filename"]
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        raise InputError(f"{index} is not AugReg's index ({error!r}); remove it") from None
