"""The spec of a Vision Transformer, and what all specs share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from vitrail.models.vit_checks import ROTARY_NOISE, check_vit

Size = tuple[int, int]
"""Height and width."""

Attention = Literal["full", "axial", "differential"]
BlockKind = Literal["sequential", "parallel"]
LayerScaleAt = Literal["both", "attention"]
Pool = Literal["token", "gap", "map", "probe", "token-gap"]
Position = Literal[
    "none", "learned-1d", "learned-2d", "factorized", "sincos-2d", "sincos-2d-mae",
    "relative", "relative-2d", "relative-mlp",
]  # fmt: skip
PositionAt = Literal["input", "every-layer", "shared"]
ResizeRule = Literal[
    "google", "timm", "timm-square", "huggingface", "torchvision", "dinov2", "siglip2"
]
Activation = Literal["gelu-tanh", "gelu", "quick-gelu", "swiglu", "geglu"]
Rotary = Literal["none", "axial", "axial-xy", "centered", "mixed"]
Norm = Literal["layer", "rms"]
NormPlace = Literal["pre", "post"]
SubNorm = Literal["none", "mlp", "both"]
LastNorm = Literal["tokens", "pooled", "none"]


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
    """Hidden size of a block's MLP (of each of its two branches where one gates the other)."""
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
    """What the head reads: the class token, the mean of the patches, attention pooling with an MLP
    (map) or by a query alone (probe, AIMv2), or the class token beside that mean (DINOv2)."""
    unpooled_class_token: bool = False
    """Whether there is a class token that the pooling does not read (EVA)."""
    pool_prefix: bool = False
    """Whether gap, map and probe pool the tokens before the patches too (Perception Encoder)."""
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
    """Kind of position embedding (Appendix D.4). Successors': big_vision's and MAE's sin-cos, a
    row's and a column's added (factorized, NaFlex), and biases of attention for 2-D offsets, by a
    table (BEiT) or an MLP (timm)."""
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
    """The MLP's activation: the official code has the tanh form of GELU, timm the exact one; in
    swiglu and geglu one branch gates the other."""
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
        check_vit(self)

    @property
    def gated(self) -> bool:
        """Whether one branch of the MLP gates the other."""
        return self.activation in ("swiglu", "geglu")

    @property
    def relative(self) -> bool:
        """Whether positions are a bias of attention, inside each layer."""
        return self.position in ("relative", "relative-2d", "relative-mlp")

    @property
    def takes_mixed_sizes(self) -> bool:
        """Whether a batch may hold images of different sizes, as patches."""
        return self.family == "vit" and self.attention != "axial" and self.position != "relative"

    @property
    def rotary_noise(self) -> bool:
        """Whether rotary coordinates are changed at random in training."""
        return any(getattr(self, field) != getattr(type(self), field) for field in ROTARY_NOISE)

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
    for field in ("dropout", "attention_dropout", "stochastic_depth", *ROTARY_NOISE)
}
"""The options of noise in training, as they are without any."""
