"""Model specs: frozen records that alone decide a model's shape.

Each option is one field; `vitrail.models.names` prints a spec as a name and parses it back. This
module does not import torch, so that names and costs answer at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from vitrail.config import InputError, from_dict, suggest, to_dict
from vitrail.models.vit_checks import check_choices, check_least
from vitrail.models.vit_checks import check_division as check_division
from vitrail.models.vit_spec import Activation as Activation
from vitrail.models.vit_spec import Pool as Pool
from vitrail.models.vit_spec import ResizeRule as ResizeRule
from vitrail.models.vit_spec import Size as Size
from vitrail.models.vit_spec import SpecName
from vitrail.models.vit_spec import ViTSpec as ViTSpec

Standardize = Literal["bit", "hybrid", "timm"]
PoolPadding = Literal["none", "zeros"]
StemKind = Literal["resnet", "conv", "mobileclip"]


@dataclass(frozen=True, kw_only=True)
class HybridSpec(ViTSpec):
    """A ViT over a feature map: of a ResNet with GroupNorm and standardized weights, or another."""

    family: ClassVar[str] = "hybrid"

    patch: Size = (1, 1)
    stem: StemKind = "resnet"
    """The paper's ResNet; 3x3 convolutions from the first on, for small images (conv); or two
    with GELU over cells of 4 x 4 pixels, then of 2 x 2 of these (MobileCLIP)."""
    stages: tuple[int, ...] = ()
    """Bottleneck blocks of each stage; empty for the root alone (7x7 convolution and max-pool).
    With stem=conv, convolutions of each stage, the first of which halves the sides."""
    stem_width: int = 64
    """Channels of the root; a stage's blocks have 4, 8, 16, 32 times as many, or with stem=conv
    2, 4, 8, 16 times."""
    stem_norm_eps: float = 1e-6
    """GroupNorm's epsilon in the stem."""
    standardize: Standardize = "hybrid"
    """Which project's rule standardizes the stem's weights."""

    def __post_init__(self) -> None:
        _check_stages(self.stages, self.stem_width)
        if self.stem == "mobileclip" and self.stages:
            raise InputError("stages requires stem=resnet or stem=conv, got mobileclip")
        if self.stem == "conv" and not self.stages:
            raise InputError("stem=conv needs at least one stage, for example stages=2-2")
        super().__post_init__()

    @property
    def stem_stride(self) -> int:
        """Stride of the feature map: the root's 4, doubled by each stage but the first.

        With stem=conv, each stage doubles it, and the root does not.
        """
        if self.stem == "conv":
            return 2 ** len(self.stages)
        return 8 if self.stem == "mobileclip" else 4 * 2 ** max(len(self.stages) - 1, 0)

    @property
    def stem_channels(self) -> int:
        """Channels of the feature map."""
        if self.stem == "conv":
            return self.stem_width * 2 ** len(self.stages)
        return self.stem_width * 4 * 2 ** (len(self.stages) - 1) if self.stages else self.stem_width

    @property
    def stride(self) -> Size:
        """Pixels between neighboring tokens, down and across."""
        return self.stem_stride * self.patch[0], self.stem_stride * self.patch[1]


@dataclass(frozen=True, kw_only=True)
class BiTSpec(SpecName):
    """A BiT ResNet-v2 with GroupNorm and standardized weights; with heads, an AxialResNet."""

    family: ClassVar[str] = "bit"

    stages: tuple[int, ...]
    """Bottleneck blocks of each stage."""
    width: int = 64
    """Channels of the root; a stage's blocks have 4, 8, 16, 32 times as many."""
    heads: int = 0
    """Heads of the axial attention that replaces the 3x3 convolutions; 0 keeps them."""
    image: Size = (224, 224)
    """Resolution that it is trained at; any other works too."""
    channels: int = 3
    """Channels of an image."""
    classes: int = 1000
    """Outputs of the head; 0 leaves it out, and `forward` returns the features."""
    norm_eps: float = 1e-5
    """GroupNorm's epsilon."""
    standardize: Standardize = "bit"
    """Which project's rule standardizes the weights."""
    pool_padding: PoolPadding = "none"
    """Padding of the root's max-pool: none (big_vision) or zeros (timm)."""

    def __post_init__(self) -> None:
        check_choices(self)
        check_least(self, 1, "channels", "image")
        check_least(self, 0, "heads", "classes", "norm_eps")
        _check_stages(self.stages, self.width)
        if not self.stages:
            raise InputError("a ResNet needs at least one stage, for example stages=3-4-6-3")
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
        """Size of the head's input: the last feature map's channels."""
        return self.width * 4 * 2 ** (len(self.stages) - 1)


Spec = ViTSpec | HybridSpec | BiTSpec
"""The spec of any model."""

FAMILIES: dict[str, type[ViTSpec] | type[HybridSpec] | type[BiTSpec]] = {
    spec.family: spec for spec in (ViTSpec, HybridSpec, BiTSpec)
}


def spec_to_dict(spec: Spec) -> dict[str, Any]:
    """Return a spec as plain data, its family first."""
    return {"family": spec.family, **to_dict(spec)}


def spec_from_dict(data: dict[str, Any]) -> Spec:
    """Read a spec from plain data; an unknown family or field is refused."""
    family = data.get("family")
    if not isinstance(family, str) or family not in FAMILIES:
        raise InputError(f"unknown model family {family!r}; there are: {', '.join(FAMILIES)}"
                         f"{suggest(str(family), FAMILIES)}")  # fmt: skip
    return from_dict(FAMILIES[family], {k: v for k, v in data.items() if k != "family"})


def _check_stages(stages: tuple[int, ...], width: int) -> None:
    if any(blocks < 1 for blocks in stages):
        raise InputError(f"every stage needs at least one block, got {stages}")
    if width < 32 or width % 32:
        raise InputError(f"a ResNet's width must be a multiple of 32 (GroupNorm), got {width}")
