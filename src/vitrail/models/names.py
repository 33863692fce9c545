"""The grammar of model names: a name is parsed to a frozen spec and printed back the same.

ViT-B/16            a size of the paper and its successors, any patch size
ViT-B/16@384        at another resolution (224 unless said), square or HxW
ViT-B/16,pool=gap   any field of the spec, after a comma
ViT/32,depth=8,width=1024,heads=16,mlp=2048     a shape without a size letter
R50+ViT-B/16        hybrid: stage 4's blocks moved into stage 3; /32: the output of stage 4
Hybrid-B/1,stages=3-4-9                         any stem; the patch is of its feature map
Hybrid-S/1@32,stem=conv,stages=2-2-2            3x3 convolutions, for small images
Hybrid-B/2,stem=mobileclip,stem_width=192       MobileCLIP's
BiT-R152x4          ResNet-v2 of 152 layers, four times as wide
AxialViT-B/32, AxialResNet-50                   Appendix D.6
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import fields, replace
from typing import Any, Literal

from vitrail.config import InputError, from_dict, suggest
from vitrail.models.spec import BiTSpec, HybridSpec, Size, Spec, ViTSpec

Shape = dict[Literal["depth", "width", "heads", "mlp"], int]


def _shape(depth: int, width: int, heads: int, mlp: int) -> Shape:
    return {"depth": depth, "width": width, "heads": heads, "mlp": mlp}


SIZES: dict[str, Shape] = {
    "Ti": _shape(12, 192, 3, 768),  # AugReg, arXiv 2106.10270, Table 2
    "S": _shape(12, 384, 6, 1536),  # AugReg, Table 2
    "b": _shape(12, 384, 12, 1536),  # Figure 4: "ViT-B with all hidden dimensions halved"
    "B": _shape(12, 768, 12, 3072),  # Table 1
    "L": _shape(24, 1024, 16, 4096),  # Table 1
    "So400m": _shape(27, 1152, 16, 4304),  # arXiv 2305.13035
    "H": _shape(32, 1280, 16, 5120),  # Table 1
    "g": _shape(40, 1408, 16, 6144),  # arXiv 2106.04560, Table 2
    "G": _shape(48, 1664, 16, 8192),  # arXiv 2106.04560, Table 2
}

RESNETS: dict[str, tuple[int, ...]] = {
    "26": (2, 2, 2, 2),
    "50": (3, 4, 6, 3),
    "101": (3, 4, 23, 3),
    "152": (3, 8, 36, 3),
    "200": (3, 24, 36, 3),
}

NAMES: tuple[str, ...] = (
    *("ViT-Ti/16", "ViT-S/32", "ViT-S/16", "ViT-b/32", "ViT-b/16", "ViT-B/32", "ViT-B/16"),
    *("ViT-B/8", "ViT-L/32", "ViT-L/16", "ViT-So400m/14", "ViT-H/14", "ViT-g/14", "ViT-G/14"),
    *("R+ViT-Ti/16", "R26+ViT-S/32", "R26+ViT-B/32", "R50+ViT-B/32", "R50+ViT-B/16"),
    *("R50+ViT-L/32", "R50+ViT-L/16"),
    *(f"BiT-R{depth}x{width}" for depth in (50, 101, 152, 200) for width in (1, 2, 3, 4)),
    *("AxialViT-B/32", "AxialViT-B/16", "AxialResNet-50"),
)
"""Models of the paper and its successors; the grammar can express many more."""

_AXIAL_HEADS = 8  # of Axial-DeepLab (arXiv 2003.07853), which Appendix D.6 follows

_PEER_SIZES = {"tiny": "Ti", "small": "S", "base": "B", "large": "L", "so400m": "So400m"}
_PEER_SIZES |= {"huge": "H", "gigantic": "G", "giant": "g"}

_BASE = re.compile(
    r"(?P<kind>ViT|AxialViT|Hybrid|R(?P<resnet>\d*)\+ViT)(?:-(?P<size>[A-Za-z0-9]+))?"
    r"/(?P<patch>\d+(?:x\d+)?)"
    r"|BiT(?:-R(?P<depth>\d+)x(?P<factor>\d{1,9}))?"
    r"|AxialResNet-(?P<axial>\d+)"
)


def parse(name: str) -> Spec:
    """Parse a model's name; an unknown one is refused with the nearest known ones."""
    return parse_said(name)[0]


def parse_said(name: str) -> tuple[Spec, frozenset[str]]:
    """Parse a model's name; also return the fields that it says, rather than leaves as usual."""
    head, *options = name.split(",")
    base, at, resolution = head.partition("@")
    match = _BASE.fullmatch(base)
    if match is None:
        raise _unknown(name)
    family, given = _read_base(match, name)
    if at:
        given["image"] = parse_size(resolution, name)
    for option in options:
        field, equals, value = option.partition("=")
        if not equals:
            raise InputError(f"{name!r}: {option!r} is not of the form field=value")
        given[field] = _read_value(field, value)
    try:
        return from_dict(family, given), frozenset(given)
    except InputError as error:
        raise InputError(f"{name!r}: {error}") from None


def _read_base(match: re.Match[str], name: str) -> tuple[type[Spec], dict[str, Any]]:
    """Parse the part before '@' and ',' to a family and the fields that it sets."""
    if depth := match["axial"] or match["depth"]:
        if depth not in RESNETS or depth == "26" or (match["axial"] and depth != "50"):
            raise _unknown(name)
        given: dict[str, Any] = {"stages": RESNETS[depth]}
        given |= {"heads": _AXIAL_HEADS} if match["axial"] else {"width": 64 * int(match["factor"])}
        return BiTSpec, given
    if match["kind"] is None:
        return BiTSpec, {}
    if match["size"] is not None and match["size"] not in SIZES:
        raise _unknown(name)
    given = {**SIZES[match["size"]]} if match["size"] else {}
    patch = parse_size(match["patch"], name)
    match match["kind"]:
        case "ViT":
            return ViTSpec, {**given, "patch": patch}
        case "AxialViT":
            return ViTSpec, {**given, "patch": patch, "attention": "axial", "pool": "gap"}
        case "Hybrid":
            return HybridSpec, {**given, "patch": patch}
        case _:
            return HybridSpec, {**given, **_read_stem(match["resnet"], patch, name)}


def _read_stem(resnet: str, stride: Size, name: str) -> dict[str, Any]:
    """Choose the hybrid's stem: a ResNet cut in one of the paper's two ways, or its root alone."""
    if not resnet and stride[0] % 2 == stride[1] % 2 == 0:
        # The official name counts the root as 2x; it is 4x, so R+ViT-Ti/16 has a token every 32.
        return {"stages": (), "patch": (stride[0] // 2, stride[1] // 2)}
    if resnet not in RESNETS or stride not in ((16, 16), (32, 32)):
        raise _unknown(name)
    return {"stages": _cut_resnet(resnet, stride[0])}


def _cut_resnet(layers: str, stride: int) -> tuple[int, ...]:
    """Take all four stages (/32), or move the fourth's blocks into the third (/16): section 4.1."""
    first, second, third, fourth = RESNETS[layers]
    return (first, second, third, fourth) if stride == 32 else (first, second, third + fourth)


def parse_size(text: str, name: str | None = None) -> Size:
    """Parse a height and width: "384" is square, "384x512" is not."""
    if not re.fullmatch(r"[1-9]\d{0,8}(x[1-9]\d{0,8})?", text):
        where = f"{name!r}: " if name else ""
        raise InputError(f"{where}{text!r} is not a size; write 384, or 384x512 (height x width)")
    height, _, width = text.partition("x")
    return int(height), int(width or height)


def as_size(image: str | int | Size | None) -> Size | None:
    """Read a height and width as people give them: 384, "384x512", (384, 512); None stays None."""
    if image is None:
        return None
    given: Any = image
    if isinstance(given, tuple | list) and len(given) == 2:
        image = "x".join(map(str, given))
    if isinstance(given, tuple | list | int | str):
        return parse_size(str(image))
    raise InputError(f"{image!r} is not a size; give 384, or (384, 512) for height and width")


def as_spec(model: str | Spec) -> Spec:
    """Read a model's name, or take a spec as it is."""
    if isinstance(model, str):
        return parse(model)
    if not isinstance(model, Spec):
        raise InputError(f"expected a model's name, such as ViT-B/16, got {type(model).__name__}")
    return model


def at_size(name: str, size: Size) -> str:
    """Name a model at a resolution, which is printed even if it is the default.

    Recipes set the resolution of a name that does not say one.
    """
    printed = print_name(replace(parse(name), image=size))
    base, comma, options = printed.partition(",")
    if "@" not in base:
        base += f"@{_print_value(size, square=True)}"
    return base + comma + options


def _read_value(field: str, text: str) -> Any:
    """Parse one option's value; the spec checks whether it suits its field."""
    if field == "stages":
        parts = filter(None, text.split("-"))
        return [int(part) if re.fullmatch(r"\d{1,9}", part) else part for part in parts]
    if re.fullmatch(r"\d+x\d+", text):
        return parse_size(text)
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return {"true": True, "false": False}.get(text, text)


def print_name(spec: Spec, *, classes: bool = True) -> str:
    """Print a spec as its shortest name, which `parse` reads back to an equal spec."""
    base = _print_base(spec)
    match = _BASE.fullmatch(base)
    assert match is not None, base
    said = _read_base(match, base)[1]
    text = (
        base if spec.image == ViTSpec.image else f"{base}@{_print_value(spec.image, square=True)}"
    )
    for field in fields(spec):
        value = getattr(spec, field.name)
        skip = field.name == "image" or (field.name == "classes" and not classes)
        if not skip and value != said.get(field.name, field.default):
            text += f",{field.name}={_print_value(value)}"
    return text


def _print_base(spec: Spec) -> str:
    if isinstance(spec, BiTSpec):
        layers = next((k for k, v in RESNETS.items() if v == spec.stages and k != "26"), None)
        if layers == "50" and spec.width == 64 and spec.heads == _AXIAL_HEADS:
            return "AxialResNet-50"
        return f"BiT-R{layers}x{spec.width // 64}" if layers and spec.width % 64 == 0 else "BiT"
    shape = _shape(spec.depth, spec.width, spec.heads, spec.mlp)
    size = next((f"-{letter}" for letter, known in SIZES.items() if known == shape), "")
    patch = _print_value(spec.patch, square=True)
    if not isinstance(spec, HybridSpec):
        return f"{'AxialViT' if spec.attention == 'axial' else 'ViT'}{size}/{patch}"
    if not spec.stages and spec.stem == "resnet":
        return f"R+ViT{size}/{_print_value((2 * spec.patch[0], 2 * spec.patch[1]), square=True)}"
    for layers in RESNETS if spec.stem == "resnet" else ():
        for stride in (16, 32):
            if spec.patch == (1, 1) and spec.stages == _cut_resnet(layers, stride):
                return f"R{layers}+ViT{size}/{stride}"
    return f"Hybrid{size}/{patch}"


def _print_value(value: Any, *, square: bool = False) -> str:
    """Print one value; with `square`, a size of equal sides is one number."""
    if isinstance(value, tuple):
        if square and value[0] == value[1]:
            return str(value[0])
        return ("x" if square else "-").join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _unknown(name: str) -> InputError:
    """Refuse a name and suggest the nearest, also for names of timm and Hugging Face."""
    near = name.replace("_", "/")
    if peer := re.search(rf"({'|'.join(_PEER_SIZES)})[-_]patch(\d+)", name.lower()):
        near = f"ViT-{_PEER_SIZES[peer[1]]}/{peer[2]}"
    hint = suggest(near, NAMES) or f"; for example {', '.join(NAMES[5:8])}"
    return InputError(f"unknown model {name!r}{hint} ('vitrail models' lists them)")
