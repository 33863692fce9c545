"""Model records: what decides the shape of a model, and nothing else does.

A spec is a frozen record with one field an option; `vitrail.models.names` writes it as a name and
reads it back. This module knows no torch, so that names and costs answer at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args, get_origin, get_type_hints

from vitrail.config import InputError, from_dict, suggest, to_dict

Size = tuple[int, int]
"""Height and width."""

Attention = Literal["full", "axial"]
Pool = Literal["token", "gap", "map"]
Position = Literal["none", "learned-1d", "learned-2d", "relative", "sincos-2d"]
PositionAt = Literal["input", "every-layer", "shared"]
ResizeRule = Literal["google", "timm", "huggingface", "torchvision"]
Activation = Literal["gelu-tanh", "gelu", "quick-gelu", "swiglu"]
Standardize = Literal["bit", "hybrid", "timm"]
PoolPadding = Literal["none", "zeros"]


class _Named:
    """What every spec can say of itself."""

    @property
    def name(self) -> str:
        """The model's name without its number of classes."""
        from vitrail.models.names import print_name  # the grammar is built on the records

        return print_name(self, classes=False)  # pyright: ignore[reportArgumentType]

    def __str__(self) -> str:
        from vitrail.models.names import print_name

        return print_name(self)  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True, kw_only=True)
class ViTSpec(_Named):
    """A Vision Transformer (section 3.1 of the paper)."""

    family: ClassVar[str] = "vit"

    depth: int
    """Encoder blocks."""
    width: int
    """Size D of a token."""
    heads: int
    """Attention heads of a block."""
    mlp: int
    """Hidden size of a block's MLP (of each of its two branches with swiglu)."""
    patch: Size = (16, 16)
    """Patch size in pixels; for a hybrid, in cells of the stem's feature map."""
    image: Size = (224, 224)
    """Resolution that the position embeddings are made for; others are resized to."""
    channels: int = 3
    """Channels of an image."""
    classes: int = 1000
    """Outputs of the head; 0 leaves the head out and `forward` gives the features."""
    representation: int = 0
    """Size of the pre-training head's tanh layer; 0 is the fine-tuning head, one linear layer."""
    attention: Attention = "full"
    """All tokens at once, or rows then columns (Appendix D.6)."""
    pool: Pool = "token"
    """What the head reads: the class token, the mean of the patches, or attention pooling."""
    distilled: bool = False
    """Whether a distillation token with a head of its own follows the class token (DeiT)."""
    registers: int = 0
    """Register tokens, which carry no position and feed no head."""
    position: Position = "learned-1d"
    """Kind of position embedding (Appendix D.4)."""
    position_at: PositionAt = "input"
    """Where it acts: at the input, at every layer, or at every layer with one shared table."""
    position_resize: ResizeRule = "google"
    """Whose rule resizes position embeddings to another grid."""
    class_position: bool = True
    """Whether the class token has a position embedding of its own (big_vision's has none)."""
    patch_bias: bool = True
    """Whether the patch embedding has a bias (CLIP's has none)."""
    pre_norm: bool = False
    """Whether a norm precedes the first block (CLIP)."""
    activation: Activation = "gelu-tanh"
    """The MLP's non-linearity: the official code's GELU is the tanh form, its peers' exact."""
    qkv_bias: bool = True
    """Whether the query, key and value projections have a bias."""
    qk_norm: bool = False
    """Whether queries and keys are normalized for each head."""
    layer_scale: float = 0.0
    """Initial value of the residual branches' LayerScale; 0 is none."""
    norm_eps: float = 1e-6
    """LayerNorm's epsilon."""
    head_bias: bool = True
    """Whether the head's last layer has a bias (CLIP's projection has none)."""
    dropout: float = 0.0
    """Dropout after every dense layer except qkv, and after adding positions (Appendix B.1)."""
    attention_dropout: float = 0.0
    """Dropout of attention weights."""
    stochastic_depth: float = 0.0
    """Chance that the last block's residual branches are left out; earlier ones linearly less."""

    def __post_init__(self) -> None:
        _check_choices(self)
        _check_least(self, 1, "depth", "width", "heads", "mlp", "channels", "patch", "image")
        _check_least(self, 0, "classes", "representation", "registers", "layer_scale", "norm_eps")
        for rate in ("dropout", "attention_dropout", "stochastic_depth"):
            if not 0 <= getattr(self, rate) < 1:
                raise InputError(f"{rate} is a rate from 0 to below 1, not {getattr(self, rate)}")
        if self.width % self.heads:
            raise InputError(f"width {self.width} is not a multiple of {self.heads} heads")
        check_division(self.image, self.stride)
        self._check_positions()
        if self.distilled and self.pool != "token":
            raise InputError(f"a distillation token stands beside a class token: pool={self.pool}")
        if self.attention == "axial" and (self.pool == "token" or self.registers):
            raise InputError(
                "axial attention runs over rows and columns and has no place for class or register "
                "tokens: choose pool=gap or pool=map, and registers=0"
            )

    def _check_positions(self) -> None:
        parts = {"learned-2d": 2, "sincos-2d": 4}.get(self.position, 1)
        if self.width % parts:
            raise InputError(
                f"{self.position} positions: {parts} does not divide the {self.width=}"
            )
        if self.position == "sincos-2d" and self.width < 8:
            raise InputError(f"sincos-2d positions need a width of at least 8, not {self.width}")
        if self.position == "relative" and self.position_at == "input":
            raise InputError(
                "relative positions act inside attention: choose position_at=every-layer (a table "
                "for each layer) or position_at=shared (one table)"
            )
        if self.position == "relative" and self.attention == "axial":
            raise InputError("axial attention takes absolute positions, not relative ones")

    @property
    def stride(self) -> Size:
        """Pixels from one token to the next, down and across."""
        return self.patch

    @property
    def grid(self) -> Size:
        """Rows and columns of patch tokens."""
        return self.image[0] // self.stride[0], self.image[1] // self.stride[1]

    @property
    def prefix(self) -> int:
        """Tokens before the patches: the class token, the distillation token, the registers."""
        return (self.pool == "token") + self.distilled + self.registers

    @property
    def positioned(self) -> int:
        """Tokens before the patches that have a position embedding."""
        return (self.pool == "token") + self.distilled if self.class_position else 0

    @property
    def tokens(self) -> int:
        """Tokens of an image, prefix included."""
        return self.prefix + self.grid[0] * self.grid[1]

    @property
    def pooled(self) -> int:
        """Size of what the head reads."""
        return self.width


@dataclass(frozen=True, kw_only=True)
class HybridSpec(ViTSpec):
    """A ViT over the feature map of a ResNet with GroupNorm and standardized weights."""

    family: ClassVar[str] = "hybrid"

    patch: Size = (1, 1)
    stages: tuple[int, ...] = ()
    """Bottleneck blocks a stage; empty is the root alone (7x7 convolution and max-pool)."""
    stem_width: int = 64
    """Channels of the root; a stage's blocks have 4, 8, 16, 32 times as many."""
    stem_norm_eps: float = 1e-6
    """GroupNorm's epsilon in the stem."""
    standardize: Standardize = "hybrid"
    """Whose rule standardizes the stem's weights."""

    def __post_init__(self) -> None:
        _check_stages(self.stages, self.stem_width)
        super().__post_init__()

    @property
    def stem_stride(self) -> int:
        """Pixels a cell of the feature map: the root's 4, doubled by each stage but the first."""
        return 4 * 2 ** max(len(self.stages) - 1, 0)

    @property
    def stem_channels(self) -> int:
        """Channels of the feature map."""
        return self.stem_width * 4 * 2 ** (len(self.stages) - 1) if self.stages else self.stem_width

    @property
    def stride(self) -> Size:
        """Pixels from one token to the next, down and across."""
        return self.stem_stride * self.patch[0], self.stem_stride * self.patch[1]


@dataclass(frozen=True, kw_only=True)
class BiTSpec(_Named):
    """A BiT ResNet-v2 with GroupNorm and standardized weights; with heads, an AxialResNet."""

    family: ClassVar[str] = "bit"

    stages: tuple[int, ...]
    """Bottleneck blocks a stage."""
    width: int = 64
    """Channels of the root; a stage's blocks have 4, 8, 16, 32 times as many."""
    heads: int = 0
    """Heads of the axial attention in the 3x3 convolutions' place; 0 keeps the convolutions."""
    image: Size = (224, 224)
    """Resolution that it is made for; any other works too."""
    channels: int = 3
    """Channels of an image."""
    classes: int = 1000
    """Outputs of the head; 0 leaves the head out and `forward` gives the features."""
    norm_eps: float = 1e-5
    """GroupNorm's epsilon."""
    standardize: Standardize = "bit"
    """Whose rule standardizes the weights."""
    pool_padding: PoolPadding = "none"
    """What the root's max-pool sees beyond the edge: nothing (big_vision) or zeros (timm)."""

    def __post_init__(self) -> None:
        _check_choices(self)
        _check_least(self, 1, "channels", "image")
        _check_least(self, 0, "heads", "classes", "norm_eps")
        _check_stages(self.stages, self.width)
        if not self.stages:
            raise InputError("a ResNet needs at least one stage, such as stages=3-4-6-3")
        if self.heads and self.width % self.heads:
            raise InputError(f"width {self.width} is not a multiple of {self.heads} heads")

    @property
    def grid(self) -> Size:
        """Rows and columns of the last feature map."""
        halvings = 1 + len(self.stages)  # the root's two and each stage's but the first
        return -(-self.image[0] // 2**halvings), -(-self.image[1] // 2**halvings)

    @property
    def tokens(self) -> int:
        """Cells of the last feature map."""
        return self.grid[0] * self.grid[1]

    @property
    def pooled(self) -> int:
        """Size of what the head reads: the last feature map's channels."""
        return self.width * 4 * 2 ** (len(self.stages) - 1)


Spec = ViTSpec | HybridSpec | BiTSpec
"""Any model's record."""

FAMILIES: dict[str, type[ViTSpec] | type[HybridSpec] | type[BiTSpec]] = {
    spec.family: spec for spec in (ViTSpec, HybridSpec, BiTSpec)
}


def spec_to_dict(spec: Spec) -> dict[str, Any]:
    """Write a spec as plain data, its family first."""
    return {"family": spec.family, **to_dict(spec)}


def spec_from_dict(data: dict[str, Any]) -> Spec:
    """Read a spec from plain data; an unknown family or field is refused."""
    family = data.get("family")
    if not isinstance(family, str) or family not in FAMILIES:
        raise InputError(f"unknown model family {family!r}; there are: {', '.join(FAMILIES)}"
                         f"{suggest(str(family), FAMILIES)}")  # fmt: skip
    return from_dict(FAMILIES[family], {k: v for k, v in data.items() if k != "family"})


def check_division(image: Size, stride: Size) -> None:
    """Refuse an image that does not split into whole patches."""
    if image[0] % stride[0] or image[1] % stride[1]:
        near = [max(round(side / step), 1) * step for side, step in zip(image, stride, strict=True)]
        raise InputError(
            f"a {image[0]}x{image[1]} image does not split into {stride[0]}x{stride[1]} patches; "
            f"the nearest size that does is {near[0]}x{near[1]}"
        )


def _check_choices(spec: Spec) -> None:
    for field, kind in get_type_hints(type(spec)).items():
        if get_origin(kind) is Literal and getattr(spec, field) not in get_args(kind):
            value, known = getattr(spec, field), get_args(kind)
            hint = suggest(str(value), known)
            raise InputError(f"unknown {field} {value!r}; there are: {', '.join(known)}{hint}")


def _check_least(spec: Spec, least: int, *names: str) -> None:
    for name in names:
        value = getattr(spec, name)
        parts = value if isinstance(value, tuple) else (value,)
        if not all(part >= least for part in parts):
            raise InputError(f"{name} is at least {least}, not {value}")


def _check_stages(stages: tuple[int, ...], width: int) -> None:
    if any(blocks < 1 for blocks in stages):
        raise InputError(f"every stage has at least one block, not {stages}")
    if width < 32 or width % 32:
        raise InputError(f"a ResNet's width is a multiple of its 32 GroupNorm groups, not {width}")
