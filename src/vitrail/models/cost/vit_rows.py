"""What a ViT costs, layer by layer, in closed form."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from vitrail.models.cost.resnet_rows import stem_rows
from vitrail.models.cost.rows import Row, dense, head_rows
from vitrail.models.spec import HybridSpec, ViTSpec


def vit_rows(spec: ViTSpec) -> Iterator[Row]:
    """Write down a ViT from the stem to the head."""
    width, tokens = spec.width, spec.tokens
    channels, patches = spec.channels, spec.grid[0] * spec.grid[1]
    if isinstance(spec, HybridSpec):
        yield from stem_rows(spec)
        channels = spec.stem_channels
    pixels = channels * spec.patch[0] * spec.patch[1]
    yield Row(
        layer="patch embedding",
        output=(patches, width),
        parameters=dense(pixels, width, bias=spec.patch_bias),
        macs=patches * pixels * width,
        kept=patches * pixels,
    )
    if spec.prefix:
        kinds = {"class": spec.pool == "token", "distillation": spec.distilled}
        kinds |= {"register": spec.registers > 0}
        label = ", ".join(kind for kind, there in kinds.items() if there)
        label += " token" if spec.prefix == 1 else " tokens"
        yield Row(layer=label, output=(spec.prefix, width), parameters=spec.prefix * width)
    if parameters := _position_parameters(spec):
        label = f"positions, {spec.position}"
        yield Row(layer=label, output=(tokens, width), parameters=parameters)
    if spec.dropout:
        yield Row(layer="dropout", output=(tokens, width), parameters=0, kept=tokens * width)
    if spec.pre_norm:
        kept = tokens * (width + 2)
        yield Row(layer="norm before", output=(tokens, width), parameters=2 * width, kept=kept)
    yield _block_row(spec).times(spec.depth)
    normed = 1 + spec.distilled if spec.pool == "token" else tokens  # the heads read no more
    yield Row(
        layer="norm",
        output=(normed, width),
        parameters=2 * width,
        kept=tokens * width + 2 * normed,
    )
    if spec.pool == "map":
        yield _map_row(spec)
    for _ in range(1 + spec.distilled):
        yield from head_rows(
            spec.pooled, spec.classes, representation=spec.representation, bias=spec.head_bias
        )


def _position_parameters(spec: ViTSpec) -> int:
    rows, columns = spec.grid
    class_rows = spec.positioned
    table = {
        "none": 0,
        "sincos-2d": 0,
        "learned-1d": (class_rows + rows * columns) * spec.width,
        "learned-2d": (rows + columns) * (spec.width // 2) + class_rows * spec.width,
        "relative": (2 * spec.tokens - 1) * spec.width,
    }[spec.position]
    return table * (spec.depth if spec.position_at == "every-layer" else 1)


def _block_row(spec: ViTSpec) -> Row:
    """Write down one block; an axial one is a block over rows and one over columns."""
    if spec.attention == "full":
        return _mixing_row(spec, "block", 1, spec.tokens)
    row = _mixing_row(spec, "axial block", *spec.grid)
    column = _mixing_row(spec, "", *reversed(spec.grid))
    return replace(
        row,
        parameters=row.parameters + column.parameters,
        macs=row.macs + column.macs,
        kept=row.kept + column.kept,
    )


def _mixing_row(spec: ViTSpec, label: str, lines: int, tokens: int) -> Row:
    """Write down a block that mixes `tokens` tokens of each of `lines` lines."""
    width, mlp, gates = spec.width, spec.mlp, 2 if spec.activation == "swiglu" else 1
    parameters = 4 * width + (4 * (width // spec.heads) if spec.qk_norm else 0)
    parameters += dense(width, 3 * width, bias=spec.qkv_bias) + dense(width, width)
    parameters += dense(width, gates * mlp) + dense(mlp, width)
    parameters += 2 * width if spec.layer_scale else 0
    total = lines * tokens
    products = 4 * width * width + (gates + 1) * width * mlp + 2 * tokens * width
    if spec.position == "relative":
        products += (2 * tokens - 1) * width
    return Row(
        layer=label,
        output=(total, width),
        parameters=parameters,
        macs=total * products,
        kept=total * _block_kept(spec, tokens),
        block_input=total * width,
    )


def _block_kept(spec: ViTSpec, tokens: int) -> int:
    """Count the numbers that a block keeps for each token."""
    width, mlp = spec.width, spec.mlp
    # Both norms' inputs and outputs, qkv and its mix; the MLP before and after its activation;
    # each norm's mean and std; the softmax's normalizer for each head.
    kept = 8 * width + 2 * mlp + 4 + spec.heads
    if spec.activation == "swiglu":
        kept += 2 * mlp  # two branches, and the gate after its activation
    if spec.activation == "quick-gelu":
        kept += mlp  # the sigmoid
    if spec.layer_scale:
        kept += 2 * width
    if spec.dropout:
        kept += 2 * width + mlp
    if spec.qk_norm:
        kept += 3 * width + 4 * spec.heads
    if spec.position == "relative" or spec.attention_dropout:
        # The fused kernel can't do these: all attention weights are kept, not their normalizer.
        kept += spec.heads * tokens - spec.heads
    if spec.position == "relative":
        kept += width  # the queries once more, scaled
    if spec.attention_dropout:
        kept += 2 * spec.heads * tokens  # what was dropped, and the rest
    return kept


def _map_row(spec: ViTSpec) -> Row:
    width, mlp = spec.width, spec.mlp
    gates = 2 if spec.activation == "swiglu" else 1
    patches = spec.grid[0] * spec.grid[1]
    parameters = 2 * dense(width, width) + dense(width, 2 * width)
    parameters += dense(width, gates * mlp) + dense(mlp, width)
    once = 2 * width * width + (gates + 1) * width * mlp
    return Row(
        layer="attention pooling",
        output=(width,),
        parameters=parameters + 3 * width,  # the probe and a norm
        macs=once + patches * (2 * width * width + 2 * width),
        kept=patches * 3 * width + 4 * width + 2 * mlp,
    )
