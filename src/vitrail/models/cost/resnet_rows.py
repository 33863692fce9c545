"""The cost of a BiT ResNet, an AxialResNet or a hybrid's stem, layer by layer, in closed form."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from vitrail.models.cost.rows import ModelRows, Product, Row, count_dense, head_rows
from vitrail.models.spec import BiTSpec, HybridSpec, Size


def resnet_costs(spec: BiTSpec) -> ModelRows:
    """List a BiT ResNet's layers from the root to the head."""
    grid = _halved(spec.image)
    root = _root_row(spec.channels, spec.width, spec.image, grid)
    block = partial(_bottleneck_row, spec)
    blocks, channels, grid = _stage_rows(block, spec.stages, spec.width, _halved(grid))
    kept = 2 * channels * _cells(grid)
    norm = Row(layer="norm", output=(channels, *grid), parameters=2 * channels, kept=kept)
    return ModelRows((root,), blocks, (norm,), tuple(head_rows(channels, spec.classes)))


def stem_costs(spec: HybridSpec) -> Iterator[Row]:
    """List the layers of a hybrid's stem."""
    if spec.stem == "mobileclip":
        yield from _patch_stem_rows(spec)
        return
    if spec.stem == "conv":
        yield from _conv_stem_rows(spec)
        return
    grid = _halved(spec.image)
    root = _root_row(spec.channels, spec.stem_width, spec.image, grid)
    # Its norm's output, and a padded copy of that for the max-pool.
    kept = root.kept + 2 * spec.stem_width * _cells(grid)
    yield replace(root, parameters=root.parameters + 2 * spec.stem_width, kept=kept)
    yield from _stage_rows(_stem_block_row, spec.stages, spec.stem_width, _halved(grid))[0]


def _patch_stem_rows(spec: HybridSpec) -> Iterator[Row]:
    """List MobileCLIP's two convolutions, with the GELU after each."""
    inputs, width, grid = spec.channels, spec.stem_width, spec.image
    for number, side in enumerate((4, 2), start=1):
        pixels, before = inputs * side * side, inputs * _cells(grid)
        grid = grid[0] // side, grid[1] // side
        yield Row(
            layer=f"stem, convolution {number}",
            output=(width, *grid),
            parameters=count_dense(pixels, width),
            products=(Product(_cells(grid), pixels, width),),
            kept=before + width * _cells(grid),
        )
        inputs = width


def _conv_stem_rows(spec: HybridSpec) -> Iterator[Row]:
    """List the 3x3 convolutions of stem=conv, each with a norm and a ReLU."""
    width, grid = spec.stem_width, spec.image
    root = _conv_row("root", spec.channels, width, grid, grid)
    yield replace(root, block_input=0)
    for stage, blocks in enumerate(spec.stages, start=1):
        halved = grid[0] // 2, grid[1] // 2
        yield _conv_row(f"stage {stage}, first block", width, 2 * width, grid, halved)
        width, grid = 2 * width, halved
        if blocks > 1:
            rest = _conv_row(f"stage {stage}, other blocks", width, width, grid, grid)
            yield rest.times(blocks - 1)


def _conv_row(layer: str, inputs: int, outputs: int, grid: Size, out: Size) -> Row:
    before, after = _cells(grid), _cells(out)
    weights = 9 * inputs * outputs
    # A max-pool keeps what it reads, and where each maximum was (as 64-bit indices).
    pooling = outputs * before + 2 * outputs * after if grid != out else 0
    return Row(
        layer=layer,
        output=(outputs, *out),
        parameters=weights + 2 * outputs,
        products=(Product(before, 9 * inputs, outputs),),
        kept=inputs * before + pooling + outputs * after,
        kept_once=2 * weights,
        block_input=inputs * before,
    )


def _stage_rows(
    block: Callable[[int, int, Size, Size], Row], stages: tuple[int, ...], width: int, grid: Size
) -> tuple[tuple[Row, ...], int, Size]:
    """List all stages' blocks; also return the last feature map's channels and grid."""
    rows, inputs = [], width
    for stage, blocks in enumerate(stages):
        middle, out = width * 2**stage, _halved(grid) if stage else grid
        first = block(inputs, middle, grid, out)
        rows.append(replace(first, layer=f"stage {stage + 1}, first block"))
        if blocks > 1:
            rest = replace(
                block(4 * middle, middle, out, out), layer=f"stage {stage + 1}, other blocks"
            )
            rows.append(rest.times(blocks - 1))
        inputs, grid = 4 * middle, out
    return tuple(rows), inputs, grid


def _root_row(channels: int, width: int, image: Size, grid: Size) -> Row:
    weights = channels * width * 49
    pooled = _halved(grid)
    return Row(
        layer="root",
        output=(width, *pooled),
        parameters=weights,
        products=(Product(_cells(grid), channels * 49, width),),
        # The image, the convolution's output, and where each maximum was (as 64-bit indices).
        kept=channels * _cells(image) + width * _cells(grid) + 2 * width * _cells(pooled),
        kept_once=2 * weights,
    )


def _bottleneck_row(spec: BiTSpec, inputs: int, middle: int, grid: Size, out: Size) -> Row:
    """Return the row of a pre-activation block: norm and ReLU before each convolution."""
    before, after = _cells(grid), _cells(out)
    projects = inputs != 4 * middle or grid != out
    shortcut = [Product(after, inputs, 4 * middle)] if projects else []
    first, last = Product(before, inputs, middle), Product(after, middle, 4 * middle)
    kept = 2 * (inputs * before + middle * before + middle * after)
    other = 2 * (inputs + 2 * middle)
    convolutions = [*shortcut, first, last]
    if spec.heads:
        mixing, parameters, more = _mixing(middle, spec.heads, grid)
        kept, other = kept + more, other + parameters
    else:
        mixing = [Product(after, 9 * middle, middle)]
        convolutions += mixing
    weights = sum(product.inputs * product.outputs for product in convolutions)
    return Row(
        layer="block",
        output=(4 * middle, *out),
        parameters=weights + other,
        products=(*shortcut, first, *mixing, last),
        kept=kept,
        kept_once=2 * weights,
        block_input=inputs * before,
        starts_with_norm=True,
        ends_in_product=True,
    )


def _mixing(channels: int, heads: int, grid: Size) -> tuple[list[Product], int, int]:
    """Return the products of row and column attention with relative positions.

    Also return their parameters, and the numbers that are kept.
    """
    cells = _cells(grid)
    products: list[Product] = []
    parameters = kept = 0
    for tokens in reversed(grid):
        offsets = 2 * tokens - 1
        parameters += count_dense(channels, 3 * channels) + count_dense(channels, channels)
        parameters += offsets * channels
        products += [
            Product(cells, channels, 3 * channels, roles=("query", "key", "value")),
            Product(cells, offsets, channels),  # the offsets' table is one of the block's weights
            Product(cells, tokens, 2 * channels, "activations"),
            Product(cells, channels, channels, roles=("attention-output",)),
        ]
        kept += cells * (6 * channels + heads * tokens)
    return products, parameters, kept


def _stem_block_row(inputs: int, middle: int, grid: Size, out: Size) -> Row:
    """Return the row of a hybrid's block: each convolution has a norm, all but the last a ReLU."""
    before, after = _cells(grid), _cells(out)
    projects = inputs != 4 * middle or grid != out
    products = [Product(after, inputs, 4 * middle)] if projects else []
    products += [
        Product(before, inputs, middle),
        Product(after, 9 * middle, middle),
        Product(after, middle, 4 * middle),
    ]
    weights = sum(product.inputs * product.outputs for product in products)
    return Row(
        layer="block",
        output=(4 * middle, *out),
        parameters=weights + 2 * (6 * middle + 4 * middle * projects),
        products=tuple(products),
        # Its input; each norm's input; each ReLU's output, the first once more with its padding.
        kept=inputs * before + 3 * middle * before + (6 + 4 * projects) * middle * after,
        kept_once=2 * weights,
        block_input=inputs * before,
    )


def _cells(grid: Size) -> int:
    return grid[0] * grid[1]


def _halved(grid: Size) -> Size:
    return -(-grid[0] // 2), -(-grid[1] // 2)
