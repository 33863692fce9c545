"""The spec of a Vision Transformer, and what all specs share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args, get_origin, get_type_hints

from vitrail.config import InputError, suggest

Size = tuple[int, int]
"""Height and width."""

Attention = Literal["full", "axial", "differential"]
BlockKind = Literal["sequential", "parallel"]
LayerScaleAt = Literal["both", "attention"]
Pool = Literal["token", "gap", "map", "token-gap"]
Position = Literal[
    "none", "learned-1d", "learned-2d", "factorized", "sincos-2d",
    "relative", "relative-2d", "relative-mlp",
]  # fmt: skip
PositionAt = Literal["input", "every-layer", "shared"]
ResizeRule = Literal["google", "timm", "timm-square", "huggingface", "torchvision", "siglip2"]
Activation = Literal["gelu-tanh", "gelu", "quick-gelu", "swiglu"]
Rotary = Literal["none", "axial", "axial-xy", "centered", "mixed"]
Norm = Literal["layer", "rms"]
NormPlace = Literal["pre", "post"]
SubNorm = Literal["none", "mlp", "both"]
LastNorm = Literal["tokens", "pooled", "none"]
_ROTARY_NOISE = ("rotary_shift", "rotary_jitter", "rotary_rescale")


class SpecName:
    """What all specs share: their name."""

    @property
    def name(self) -> str:
        """The model's name without its number of classes."""
        from vitrail.models.names import print_name  # the grammar is built on the records

        return print_name(self, classes=False)  # pyright: ignore[reportArgumentType]

    def __str__(self) -> str:
        from vitrail.models.names import print_name

        return print_name(self)  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True, kw_only=True)
class ViTSpec(SpecName):
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
    """Resolution that the position embeddings are trained at; they are resized for others."""
    channels: int = 3
    """Channels of an image."""
    classes: int = 1000
    """Outputs of the head; 0 leaves it out, and `forward` returns the features."""
    representation: int = 0
    """Size of the pre-training head's tanh layer; 0 for the fine-tuning head, one linear layer."""
    representation_tanh: bool = True
    """Whether a tanh follows that layer, or it is a plain projection (CLIP)."""
    representation_bias: bool = True
    """Whether that layer has a bias (not in CLIP)."""
    unit_features: bool = False
    """Whether the last layer reads features of length 1, as they are compared with text (CLIP)."""
    attention: Attention = "full"
    """All tokens at once; rows then columns (Appendix D.6); or the difference of two attentions."""
    key_heads: int = 0
    """Heads of keys and values, each shared by a group of heads; 0 for as many as heads."""
    key_heads_ends: int = 0
    """First and last blocks in which no keys are shared (Sapiens2)."""
    block: BlockKind = "sequential"
    """Whether a block's MLP follows attention, or stands beside it after one norm (ViT-22B)."""
    branches: int = 1
    """Attentions, and then MLPs, that stand side by side in a block (arXiv 2203.09795)."""
    pool: Pool = "token"
    """What the head reads: the class token, the mean of the patches, attention pooling, or the
    class token beside that mean (DINOv2)."""
    unpooled_class_token: bool = False
    """Whether there is a class token that the pooling does not read (EVA)."""
    pool_prefix: bool = False
    """Whether gap and map pool the tokens before the patches too (Perception Encoder)."""
    pool_heads: int = 0
    """Heads of attention pooling; 0 for as many as the blocks have."""
    pool_mlp: int = 0
    """Hidden size of attention pooling's MLP; 0 for the blocks'."""
    distilled: bool = False
    """Whether a distillation token with its own head follows the class token (DeiT)."""
    registers: int = 0
    """Register tokens, which are not pooled."""
    register_position: bool = False
    """Whether registers have position embeddings."""
    position: Position = "learned-1d"
    """Kind of position embedding (Appendix D.4). Successors': factorized, a row's and a column's
    added (NaFlex), and biases of attention for 2-D offsets, by a table (BEiT) or an MLP (timm)."""
    position_mlp: int = 128
    """Hidden size of the MLP of relative-mlp positions."""
    position_at: PositionAt = "input"
    """Where it is added: at the input, at every layer, or at every layer from one shared table."""
    position_resize: ResizeRule = "google"
    """Which project's rule resizes position embeddings to another grid; timm-square to a square
    first, which is then cut, so that they keep their aspect ratio (NaFlex)."""
    class_position: bool = True
    """Whether the class token has a position embedding (not in big_vision)."""
    rotary: Rotary = "none"
    """Rotary positions of queries and keys, in every layer: axial, y before x (EVA-02) or x before
    y; axial with coordinates from -1 to 1 (DINOv3); mixed, with learned frequencies."""
    rotary_theta: float = 10_000.0
    """Base of the rotary frequencies."""
    rotary_grid: int = 0
    """Side of the grid that axial coordinates are scaled to (EVA-02); 0 for the image's own."""
    rotary_offset: float = 0.0
    """First coordinate of axial rotary positions."""
    rotary_shift: float = 0.0
    """In training, each image's centered coordinates are shifted by up to this (DINOv3)."""
    rotary_jitter: float = 1.0
    """In training, rows and columns are scaled apart, by up to this factor or its inverse."""
    rotary_rescale: float = 1.0
    """In training, both are scaled alike, by up to this factor or its inverse."""
    patch_norm: bool = False
    """Whether a norm follows the patch embedding (AIMv2)."""
    patch_bias: bool = True
    """Whether the patch embedding has a bias (not in CLIP)."""
    pre_norm: bool = False
    """Whether a norm precedes the first block (CLIP)."""
    activation: Activation = "gelu-tanh"
    """The MLP's activation: the official code has the tanh form of GELU, timm the exact one."""
    qkv_bias: bool = True
    """Whether the query, key and value projections have a bias."""
    key_bias: bool = True
    """Whether the key projection has one too (not in EVA and BEiT)."""
    dense_bias: bool = True
    """Whether attention's output and the MLPs have biases (not in AIMv2)."""
    qk_norm: bool = False
    """Whether queries and keys are normalized for each head."""
    norm: Norm = "layer"
    """LayerNorm or RMSNorm."""
    norm_place: NormPlace = "pre"
    """Whether a block's norms precede its branches or follow them, before the residual sum."""
    sub_norm: SubNorm = "none"
    """Norms before the last layer of the MLP, or of the MLP and attention (EVA-02)."""
    last_norm: LastNorm = "tokens"
    """What the last norm is applied to: the encoded tokens, or what the pooling returns."""
    layer_scale: float = 0.0
    """Initial value of the residual branches' LayerScale; 0 for none."""
    layer_scale_at: LayerScaleAt = "both"
    """Which branches have LayerScale: both, or attention alone (Sapiens2)."""
    norm_eps: float = 1e-6
    """The norms' epsilon."""
    head_bias: bool = True
    """Whether the head's last layer has a bias (not in CLIP's projection)."""
    dropout: float = 0.0
    """Dropout after every dense layer except qkv, and after adding positions (Appendix B.1)."""
    attention_dropout: float = 0.0
    """Dropout of attention weights."""
    stochastic_depth: float = 0.0
    """Drop rate of the last block's residual branches; earlier blocks' rates are linearly lower."""

    def __post_init__(self) -> None:
        check_choices(self)
        check_least(self, 1, "depth", "width", "heads", "mlp", "channels", "patch", "image")
        check_least(self, 0, "classes", "representation", "registers", "layer_scale", "norm_eps")
        check_least(self, 0, "pool_heads", "pool_mlp", "rotary_grid", "key_heads", "key_heads_ends")
        check_least(self, 1, "branches", "position_mlp")
        for rate in ("dropout", "attention_dropout", "stochastic_depth"):
            if not 0 <= getattr(self, rate) < 1:
                raise InputError(f"{rate} must be in [0, 1), got {getattr(self, rate)}")
        if self.width % self.heads:
            raise InputError(f"width {self.width} is not a multiple of {self.heads} heads")
        check_division(self.image, self.stride)
        self._check_positions()
        self._check_tokens()
        self._check_blocks()
        if self.attention == "axial" and self.prefix:
            raise InputError(
                "axial attention runs over rows and columns, without class or register tokens: "
                "choose pool=gap or pool=map, and registers=0"
            )

    def _check_tokens(self) -> None:
        if self.distilled and (self.pool != "token" or self.last_norm != "tokens"):
            raise InputError(
                f"distilled requires pool=token and last_norm=tokens, got pool={self.pool} and "
                f"last_norm={self.last_norm}"
            )
        if self.reads_class_token and (self.unpooled_class_token or self.pool_prefix):
            raise InputError("unpooled_class_token and pool_prefix require pool=gap or pool=map")
        if self.pool != "map" and (self.pool_heads or self.pool_mlp):
            raise InputError("pool_heads and pool_mlp require pool=map")
        if self.pool == "token-gap" and self.last_norm == "pooled":
            raise InputError("pool=token-gap requires last_norm=tokens or none, got pooled")
        if self.width % (self.pool_heads or self.heads):
            raise InputError(f"width {self.width} is not a multiple of {self.pool_heads=}")
        if self.register_position and not (self.registers and self.position == "learned-1d"):
            raise InputError("register_position requires registers and position=learned-1d")
        if self.register_position and self.class_tokens and not self.class_position:
            raise InputError("register_position requires class_position beside a class token")
        if not (self.representation or (self.representation_tanh and self.representation_bias)):
            raise InputError("representation_tanh and representation_bias require representation")
        if not self.key_bias and not self.qkv_bias:
            raise InputError("key_bias=false requires qkv_bias=true")

    def _check_blocks(self) -> None:
        shared = 0 < self.key_heads != self.heads
        if shared and (self.heads % self.key_heads or self.attention != "full"):
            raise InputError(
                f"key_heads must divide the {self.heads} heads of attention=full, got "
                f"{self.key_heads}"
            )
        if shared and (not self.key_bias or self.rotary == "mixed"):
            raise InputError("key_heads requires key_bias=true and rotary other than mixed")
        if self.key_heads_ends and not shared:
            raise InputError("key_heads_ends requires key_heads, fewer than heads")
        if self.attention == "differential" and not self.key_bias:
            raise InputError("attention=differential requires key_bias=true")
        if self.attention == "differential" and self.width // self.heads % 2:
            raise InputError(
                f"attention=differential needs heads of even size, got {self.width // self.heads}"
            )
        if self.block == "parallel" and self.norm_place == "post":
            raise InputError("block=parallel requires norm_place=pre")
        if (self.block == "parallel" or self.attention == "axial") and self.branches > 1:
            raise InputError("branches requires block=sequential, and attention other than axial")
        if self.block == "parallel" and self.attention == "axial":
            raise InputError("block=parallel requires attention other than axial")
        if self.layer_scale_at != "both" and (not self.layer_scale or self.block == "parallel"):
            raise InputError("layer_scale_at requires layer_scale and block=sequential")

    def _check_rotary(self) -> None:
        if self.rotary == "none":
            for field in ("rotary_theta", "rotary_grid", "rotary_offset", *_ROTARY_NOISE):
                if getattr(self, field) != getattr(type(self), field):
                    raise InputError(f"{field} requires rotary positions, such as rotary=axial")
            return
        if self.attention != "full":
            raise InputError(
                f"{self.attention} attention takes absolute positions, not rotary ones"
            )
        if self.width // self.heads % 4:
            raise InputError(
                f"rotary positions need heads whose size 4 divides, got {self.width // self.heads}"
            )
        if self.rotary in ("centered", "mixed") and (self.rotary_grid or self.rotary_offset):
            raise InputError("rotary_grid and rotary_offset require rotary=axial or axial-xy")
        if self.rotary_noise and self.rotary != "centered":
            raise InputError(f"{' and '.join(_ROTARY_NOISE)} require rotary=centered")
        check_least(self, 0, "rotary_shift")
        check_least(self, 1, "rotary_jitter", "rotary_rescale")

    def _check_positions(self) -> None:
        parts = {"learned-2d": 2, "sincos-2d": 4}.get(self.position, 1)
        if self.width % parts:
            raise InputError(
                f"{self.position} positions: {parts} does not divide the {self.width=}"
            )
        if self.position == "sincos-2d" and self.width < 8:
            raise InputError(f"sincos-2d positions need a width of at least 8, got {self.width}")
        relative = self.relative
        if relative and self.position_at == "input":
            raise InputError(
                "relative positions act inside attention: choose position_at=every-layer (a table "
                "for each layer) or position_at=shared (one table)"
            )
        if relative and self.attention != "full":
            kind = self.attention
            raise InputError(f"{kind} attention takes absolute positions, not relative ones")
        if self.position == "relative-2d" and (self.registers or self.distilled):
            raise InputError("relative-2d positions know one token beside the patches, the class's")
        if self.position != "relative-mlp" and self.position_mlp != type(self).position_mlp:
            raise InputError("position_mlp requires position=relative-mlp")
        square = ("learned-1d", "factorized")
        if self.position_resize == "timm-square" and self.position not in square:
            raise InputError(f"position_resize=timm-square requires position={' or '.join(square)}")
        self._check_rotary()

    @property
    def relative(self) -> bool:
        """Whether positions are a bias of attention, inside each layer."""
        return self.position in ("relative", "relative-2d", "relative-mlp")

    @property
    def rotary_noise(self) -> bool:
        """Whether rotary coordinates are changed at random in training."""
        return any(getattr(self, field) != getattr(type(self), field) for field in _ROTARY_NOISE)

    @property
    def stride(self) -> Size:
        """Pixels between neighboring tokens, down and across."""
        return self.patch

    @property
    def grid(self) -> Size:
        """Rows and columns of patch tokens."""
        return self.image[0] // self.stride[0], self.image[1] // self.stride[1]

    @property
    def class_tokens(self) -> int:
        """Class and distillation tokens."""
        return (self.reads_class_token or self.unpooled_class_token) + self.distilled

    @property
    def reads_class_token(self) -> bool:
        """Whether the head reads the class token, alone or beside the patches."""
        return self.pool in ("token", "token-gap")

    @property
    def prefix(self) -> int:
        """Tokens before the patches: the class token, the distillation token, the registers."""
        return self.class_tokens + self.registers

    @property
    def positioned(self) -> int:
        """Tokens before the patches that have a position embedding."""
        registers = self.registers if self.register_position else 0
        return registers + (self.class_tokens if self.class_position else 0)

    @property
    def tokens(self) -> int:
        """Tokens of an image, prefix included."""
        return self.prefix + self.grid[0] * self.grid[1]

    def key_heads_of(self, layer: int) -> int:
        """Heads of keys and values in a layer."""
        ends = self.key_heads_ends
        whole = not self.key_heads or layer < ends or layer >= self.depth - ends
        return self.heads if whole else self.key_heads

    @property
    def attention_output_bias(self) -> bool:
        """Whether attention's output layer has a bias; in timm, the MLP's may be that of both."""
        shared = self.block == "parallel" and self.attention == "differential"
        return self.dense_bias and not shared

    @property
    def pooled(self) -> int:
        """Size of the head's input."""
        return 2 * self.width if self.pool == "token-gap" else self.width


PLAIN_HEAD = {
    field: getattr(ViTSpec, field)
    for field in ("representation", "representation_tanh", "representation_bias", "unit_features")
}
"""The options of a head that is one linear layer, the fine-tuning head."""

QUIET = {
    field: getattr(ViTSpec, field)
    for field in ("dropout", "attention_dropout", "stochastic_depth", *_ROTARY_NOISE)
}
"""The options of noise in training, as they are without any."""


def check_division(image: Size, stride: Size) -> None:
    """Refuse an image that does not split into whole patches."""
    if image[0] % stride[0] or image[1] % stride[1]:
        near = [max(round(side / step), 1) * step for side, step in zip(image, stride, strict=True)]
        raise InputError(
            f"a {image[0]}x{image[1]} image does not split into {stride[0]}x{stride[1]} patches; "
            f"the nearest size that does is {near[0]}x{near[1]}"
        )


def check_choices(spec: Any) -> None:
    """Refuse a value that its field's type does not list."""
    for field, kind in get_type_hints(type(spec)).items():
        if get_origin(kind) is Literal and getattr(spec, field) not in get_args(kind):
            value, known = getattr(spec, field), get_args(kind)
            hint = suggest(str(value), known)
            raise InputError(f"unknown {field} {value!r}; there are: {', '.join(known)}{hint}")


def check_least(spec: Any, least: int, *names: str) -> None:
    """Refuse fields below their least value."""
    for name in names:
        value = getattr(spec, name)
        parts = value if isinstance(value, tuple) else (value,)
        if not all(part >= least for part in parts):
            raise InputError(f"{name} must be at least {least}, got {value}")
