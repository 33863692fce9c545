"""What a BiT ResNet, an AxialResNet or a hybrid's stem costs, layer by layer, in closed form."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from vitrail.models.cost.rows import Row, dense, head_rows
from vitrail.models.spec import BiTSpec, HybridSpec, Size


def resnet_rows(spec: BiTSpec) -> Iterator[Row]:
    """Write down a BiT ResNet from the root to the head."""
    grid = _halved(spec.image)
    yield _root_row(spec.channels, spec.width, spec.image, grid)
    inputs, grid = spec.width, _halved(grid)
    for stage, blocks in enumerate(spec.stages):
        middle, out = spec.width * 2**stage, _halved(grid) if stage else grid
        first = _bottleneck_row(spec, inputs, middle, grid, out)
        yield replace(first, layer=f"stage {stage + 1}, first block")
        rest = _bottleneck_row(spec, 4 * middle, middle, out, out)
        if blocks > 1:
            yield replace(rest, layer=f"stage {stage + 1}, other blocks").times(blocks - 1)
        inputs, grid = 4 * middle, out
    kept = 2 * inputs * _cells(grid)
    yield Row(layer="norm", output=(inputs, *grid), parameters=2 * inputs, kept=kept)
    yield from head_rows(inputs, spec.classes)


def stem_rows(spec: HybridSpec) -> Iterator[Row]:
    """Write down a hybrid's stem from the root to its last stage."""
    grid = _halved(spec.image)
    root = _root_row(spec.channels, spec.stem_width, spec.image, grid)
    # Its norm's output, and a padded copy of that for the max-pool.
    kept = root.kept + 2 * spec.stem_width * _cells(grid)
    yield replace(root, parameters=root.parameters + 2 * spec.stem_width, kept=kept)
    inputs, grid = spec.stem_width, _halved(grid)
    for stage, blocks in enumerate(spec.stages):
        middle, out = spec.stem_width * 2**stage, _halved(grid) if stage else grid
        first = _stem_block_row(inputs, middle, grid, out)
        yield replace(first, layer=f"stage {stage + 1}, first block")
        rest = _stem_block_row(4 * middle, middle, out, out)
        if blocks > 1:
            yield replace(rest, layer=f"stage {stage + 1}, other blocks").times(blocks - 1)
        inputs, grid = 4 * middle, out


def _root_row(channels: int, width: int, image: Size, grid: Size) -> Row:
    weights = channels * width * 49
    pooled = _halved(grid)
    return Row(
        layer="root",
        output=(width, *pooled),
        parameters=weights,
        macs=weights * _cells(grid),
        # The image, the convolution's output, and where each maximum was (as 64-bit indices).
        kept=channels * _cells(image) + width * _cells(grid) + 2 * width * _cells(pooled),
        kept_once=2 * weights,
    )


def _bottleneck_row(spec: BiTSpec, inputs: int, middle: int, grid: Size, out: Size) -> Row:
    """Write down a pre-activation block: norm and ReLU before each convolution."""
    before, after = _cells(grid), _cells(out)
    shortcut = 4 * inputs * middle if inputs != 4 * middle or grid != out else 0
    thin = inputs * middle
    weights = thin + shortcut + 4 * middle * middle
    macs = thin * before + (shortcut + 4 * middle * middle) * after
    kept = 2 * (inputs * before + middle * before + middle * after)
    other = 2 * (inputs + 2 * middle)
    if spec.heads:
        mixing = _mixing_row(middle, spec.heads, grid)
        macs, kept, other = macs + mixing.macs, kept + mixing.kept, other + mixing.parameters
    else:
        weights += 9 * middle * middle
        macs += 9 * middle * middle * after
    return Row(
        layer="block",
        output=(4 * middle, *out),
        parameters=weights + other,
        macs=macs,
        kept=kept,
        kept_once=2 * weights,
        block_input=inputs * before,
    )


def _mixing_row(channels: int, heads: int, grid: Size) -> Row:
    """Write down row and column attention with relative positions over a feature map."""
    cells = _cells(grid)
    parameters = macs = kept = 0
    for tokens in grid:
        offsets = 2 * tokens - 1
        parameters += dense(channels, 3 * channels) + dense(channels, channels)
        parameters += offsets * channels
        macs += cells * channels * (4 * channels + 2 * tokens + offsets)
        kept += cells * (6 * channels + heads * tokens)
    return Row(
        layer="mixing", output=(channels, *grid), parameters=parameters, macs=macs, kept=kept
    )


def _stem_block_row(inputs: int, middle: int, grid: Size, out: Size) -> Row:
    """Write down a hybrid's block: norm after each convolution, ReLU after all but the shortcut."""
    before, after = _cells(grid), _cells(out)
    projects = inputs != 4 * middle or grid != out
    shortcut = 4 * inputs * middle if projects else 0
    weights = inputs * middle + 13 * middle * middle + shortcut
    macs = inputs * middle * before + (13 * middle * middle + shortcut) * after
    return Row(
        layer="block",
        output=(4 * middle, *out),
        parameters=weights + 2 * (6 * middle + 4 * middle * projects),
        macs=macs,
        # Its input; each norm's input; each ReLU's output, the first once more with its padding.
        kept=inputs * before + 3 * middle * before + (6 + 4 * projects) * middle * after,
        kept_once=2 * weights,
        block_input=inputs * before,
    )


def _cells(grid: Size) -> int:
    return grid[0] * grid[1]


def _halved(grid: Size) -> Size:
    return -(-grid[0] // 2), -(-grid[1] // 2)
