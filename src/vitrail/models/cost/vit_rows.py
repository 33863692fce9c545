"""The cost of a ViT, layer by layer, in closed form."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from vitrail.models.cost.resnet_rows import stem_costs
from vitrail.models.cost.rows import ModelRows, Product, Row, count_dense, head_rows
from vitrail.models.spec import HybridSpec, ViTSpec


def vit_costs(spec: ViTSpec) -> ModelRows:
    """List a ViT's layers from the stem to the head."""
    # Of a class token and a distillation token only these two are normalized.
    normed = 1 + spec.distilled if spec.pool == "token" else spec.tokens
    late = []
    if spec.last_norm == "tokens":
        late.append(norm_row(spec, spec.tokens, normed))
    if spec.pool in ("map", "probe"):
        late.append(_pooling_row(spec))
    if spec.last_norm == "pooled":
        late.append(norm_row(spec, spec.tokens if spec.pool == "token" else 1, 1))
    blocks = (block_row(spec),)
    if ends := spec.key_heads_ends:
        whole = block_row(replace(spec, key_heads=0, key_heads_ends=0))
        inner = block_row(replace(spec, key_heads_ends=0)).one()
        end, shared = whole.one().times(ends), spec.depth - 2 * ends
        blocks = (end, inner.times(shared), end) if shared > 0 else (whole,)
    head = tuple(
        head_rows(
            spec.pooled,
            spec.classes,
            representation=spec.representation,
            tanh=spec.representation_tanh,
            hidden_bias=spec.representation_bias,
            bias=spec.head_bias,
        )
    )
    return ModelRows(tuple(embedding_rows(spec)), blocks, tuple(late), head * (1 + spec.distilled))


def embedding_rows(spec: ViTSpec) -> Iterator[Row]:
    """List the layers before the first block."""
    width, tokens = spec.width, spec.tokens
    channels, patches = spec.channels, spec.grid[0] * spec.grid[1]
    if isinstance(spec, HybridSpec):
        yield from stem_costs(spec)
        channels = spec.stem_channels
    pixels = channels * spec.patch[0] * spec.patch[1]
    yield Row(
        layer="patch embedding",
        output=(patches, width),
        parameters=count_dense(pixels, width, bias=spec.patch_bias),
        products=(Product(patches, pixels, width),),
        kept=patches * pixels,
    )
    if spec.patch_norm:
        yield replace(norm_row(spec, patches, patches), layer="norm of patches")
    if spec.prefix:
        kinds = {"class": spec.class_tokens > spec.distilled, "distillation": spec.distilled}
        kinds |= {"register": spec.registers > 0}
        label = ", ".join(kind for kind, there in kinds.items() if there)
        label += " token" if spec.prefix == 1 else " tokens"
        yield Row(layer=label, output=(spec.prefix, width), parameters=spec.prefix * width)
    if parameters := _position_parameters(spec):
        label = f"positions, {spec.position}"
        yield replace(
            _offsets_row(spec), layer=label, output=(tokens, width), parameters=parameters
        )
    if spec.rotary != "none":
        yield _rotary_row(spec)
    if spec.dropout:
        yield Row(layer="dropout", output=(tokens, width), parameters=0, kept=tokens * width)
    if spec.pre_norm:
        yield replace(norm_row(spec, tokens, tokens), layer="norm before")


def _offsets_row(spec: ViTSpec) -> Row:
    """Return what biases of 2-D offsets cost beside their parameters; others cost nothing."""
    # They are gathered from each table, by 64-bit indices.
    tables = spec.depth if spec.position_at == "every-layer" else 1
    patches = spec.grid[0] * spec.grid[1]
    once = {
        "relative-2d": 2 * tables * spec.tokens**2,
        "relative-mlp": 2 * tables * patches**2,
    }.get(spec.position, 0)
    if spec.position != "relative-mlp":
        return Row(layer="", output=(), parameters=0, kept_once=once)
    offsets, hidden = (2 * spec.grid[0] - 1) * (2 * spec.grid[1] - 1), spec.position_mlp
    # Computed once per batch, and counted for each image.
    products = (Product(offsets, 2, hidden), Product(offsets, hidden, spec.heads))
    return Row(
        layer="",
        output=(),
        parameters=0,
        products=products * tables,
        kept_once=once + tables * offsets * (2 + hidden),
    )


def _rotary_row(spec: ViTSpec) -> Row:
    """Return the row of the cosines and sines, which `mixed` has for each layer and head."""
    mixed, size = spec.rotary == "mixed", spec.width // spec.heads
    return Row(
        layer=f"rotary positions, {spec.rotary}",
        output=(spec.tokens, size),
        parameters=spec.depth * spec.width if mixed else 0,
        kept_once=spec.tokens * (3 * spec.depth * spec.width if mixed else 2 * size),
    )


def norm_row(spec: ViTSpec, tokens: int, normed: int) -> Row:
    """Return the row of a norm over `normed` tokens, a view of `tokens` that are kept."""
    width = spec.width
    kept = tokens * width + normed * _norm_kept(spec, width)
    return Row(
        layer="norm", output=(normed, width), parameters=_norm_parameters(spec, width), kept=kept
    )


def _norm_parameters(spec: ViTSpec, size: int) -> int:
    return size * (2 if spec.norm == "layer" else 1)


def _norm_kept(spec: ViTSpec, size: int) -> int:
    """Count the numbers that a norm keeps per token besides its input: torch's RMSNorm a copy."""
    return 2 if spec.norm == "layer" else size + 1


def _position_parameters(spec: ViTSpec) -> int:
    rows, columns = spec.grid
    class_rows = spec.positioned
    table = {
        "none": 0,
        "sincos-2d": 0,
        "sincos-2d-mae": 0,
        "learned-1d": (class_rows + rows * columns) * spec.width,
        "learned-2d": (rows + columns) * (spec.width // 2) + class_rows * spec.width,
        "factorized": (rows + columns + class_rows) * spec.width,
        "relative-mlp": 3 * spec.position_mlp + (spec.position_mlp + 1) * spec.heads,
        "relative": (2 * spec.tokens - 1) * spec.width,
        "relative-2d": (((2 * rows - 1) * (2 * columns - 1) + 3 * spec.class_tokens) * spec.heads),
    }[spec.position]
    return table * (spec.depth if spec.position_at == "every-layer" else 1)


def block_row(spec: ViTSpec, tokens: int | None = None) -> Row:
    """Return the row of all blocks, over `tokens` tokens (the spec's by default).

    An axial block is a block over rows and one over columns.
    """
    if spec.attention != "axial":
        row = _mixing_row(spec, "block", 1, tokens or spec.tokens)
        row = replace(
            row,
            parameters=row.parameters * spec.branches,
            products=row.products * spec.branches,
            # The branches' norms share their input.
            kept=row.kept * spec.branches - 2 * (spec.branches - 1) * row.block_input,
        )
        return row.times(spec.depth)
    row = _mixing_row(spec, "axial block", *spec.grid)
    column = _mixing_row(spec, "", *reversed(spec.grid))
    both = replace(
        row,
        parameters=row.parameters + column.parameters,
        products=row.products + column.products,
        kept=row.kept + column.kept,
    )
    return both.times(spec.depth)


def _mixing_row(spec: ViTSpec, label: str, lines: int, tokens: int) -> Row:
    """Return the row of a block that mixes `tokens` tokens of each of `lines` lines."""
    width, total, size = spec.width, lines * tokens, spec.width // spec.heads
    differential, parallel = spec.attention == "differential", spec.block == "parallel"
    shared = 2 * (spec.key_heads or spec.heads) * size
    normed = [] if parallel else [width]  # the other norm is counted with the MLP
    normed += [size // 2 if differential else size] * 2 if spec.qk_norm else []
    normed += {"none": [], "mlp": [spec.mlp], "both": [spec.mlp, width]}[spec.sub_norm]
    parameters = sum(_norm_parameters(spec, size) for size in normed)
    parameters += count_dense(width, width + shared, bias=spec.qkv_bias)
    parameters += count_dense(width, width, bias=spec.attention_output_bias)
    parameters += 3 * size if differential else 0  # four vectors of half size, the heads' norm
    parameters -= 0 if spec.key_bias else width
    parameters += _mlp_parameters(spec, spec.mlp)
    scales = 1 if parallel or spec.layer_scale_at == "attention" else 2
    parameters += scales * width if spec.layer_scale else 0
    relative = spec.position == "relative"
    after = spec.layer_scale or spec.dropout or spec.stochastic_depth or spec.norm_place == "post"
    return Row(
        layer=label,
        output=(total, width),
        parameters=parameters,
        products=(
            *_projections(spec, total, shared),
            *([Product(total, 2 * tokens - 1, width, "positions")] if relative else []),
            Product(total, tokens, (3 if differential else 2) * width, "activations"),
            Product(total, width, width, roles=("attention-output",)),
            *_mlp_products(spec, spec.mlp, total),
        ),
        kept=total * _block_kept(spec, tokens),
        block_input=total * width,
        starts_with_norm=spec.norm_place == "pre",
        ends_in_product=not after,
    )


def _projections(spec: ViTSpec, rows: int, shared: int) -> Iterator[Product]:
    """List the products that give queries, keys and values."""
    width = spec.width
    if shared == 2 * width:
        roles = ("query", "key", "value")
        yield Product(rows, width, 3 * width, roles=roles, input_kept=True)
        return
    yield Product(rows, width, width, roles=("query",), input_kept=True)
    yield Product(rows, width, shared, roles=("key", "value"))


def _mlp_parameters(spec: ViTSpec, mlp: int) -> int:
    """Count the parameters of an MLP and its norm."""
    hidden, output = _mlp_products(spec, mlp, 1)
    biases = hidden.outputs + output.outputs if spec.dense_bias else 0
    return _norm_parameters(spec, spec.width) + hidden.macs + output.macs + biases


def _mlp_products(spec: ViTSpec, mlp: int, rows: int) -> tuple[Product, Product]:
    branches = 1 + spec.gated
    roles = ("mlp-hidden",) * branches
    return (
        Product(rows, spec.width, branches * mlp, roles=roles, input_kept=True),
        Product(rows, mlp, spec.width, roles=("mlp-output",), input_kept=True),
    )


def _block_kept(spec: ViTSpec, tokens: int) -> int:
    """Count the numbers that a block keeps per token."""
    width, mlp = spec.width, spec.mlp
    # Both norms' inputs and outputs, qkv and its mix; the MLP before and after its activation;
    # each norm's mean and std; the softmax's normalizer for each head.
    kept = 8 * width + 2 * mlp + 2 * _norm_kept(spec, width) + spec.heads
    if spec.gated:
        kept += 2 * mlp  # two branches, and the gate after its activation
    if spec.activation == "quick-gelu":
        kept += mlp  # the sigmoid
    if spec.layer_scale:
        one = spec.block == "parallel" or spec.layer_scale_at == "attention"
        kept += width if one else 2 * width
    if spec.block == "parallel":
        kept -= 2 * width + _norm_kept(spec, width)
    if spec.attention == "differential":
        # Both attentions with all weights, their difference, its norm's output and factor.
        kept += 3 * width + spec.heads * (width // spec.heads + 2 * tokens)
    elif spec.key_heads and spec.key_heads != spec.heads:
        kept += 2 * spec.key_heads * (width // spec.heads) if spec.qk_norm else 0
    if spec.dropout:
        kept += 2 * width + mlp
    if spec.qk_norm:
        pairs = 2 if spec.attention == "differential" else 1
        size = width // spec.heads // pairs
        kept += 3 * width + 2 * pairs * spec.heads * _norm_kept(spec, size)
    if spec.sub_norm != "none":
        kept += mlp + _norm_kept(spec, mlp)
    if spec.sub_norm == "both":
        kept += width + _norm_kept(spec, width)
    grouped = 0 < spec.key_heads != spec.heads  # whose repeated keys are kept, turned or not
    if spec.rotary != "none" and not grouped:
        # Turned queries and keys; where frequencies are learned, the turned channels too.
        kept += (4 if spec.rotary == "mixed" else 2) * width
    if spec.relative or spec.attention_dropout:
        # The fused kernel can't do these: all attention weights are kept, not their normalizer.
        kept += spec.heads * tokens - spec.heads
    if spec.position == "relative":
        kept += width  # the queries once more, scaled
    if spec.attention_dropout:
        kept += 2 * spec.heads * tokens  # what was dropped, and the rest
    return kept


def _pooling_row(spec: ViTSpec) -> Row:
    width, mlp, whole = spec.width, spec.pool_mlp or spec.mlp, spec.pool == "map"
    read = spec.tokens if spec.pool_prefix else spec.tokens - spec.prefix
    parameters = width + count_dense(width, width)  # the probe, the output
    parameters += count_dense(width, 2 * width, bias=whole or spec.qkv_bias)
    parameters += count_dense(width, width) + _mlp_parameters(spec, mlp) if whole else 0
    return Row(
        layer="attention pooling",
        output=(width,),
        parameters=parameters,
        products=(
            *([Product(1, width, width)] if whole else []),
            Product(read, width, 2 * width),
            Product(read, 1, 2 * width, "activations"),
            Product(1, width, width),
            *(_mlp_products(spec, mlp, 1) if whole else ()),
        ),
        kept=read * 3 * width + (4 * width + 2 * mlp if whole else width),
    )
