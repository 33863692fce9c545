"""Position embeddings against versions written from the paper's words (Appendix D.4).

Covers: learned 1-D and 2-D, relative, sin-cos; at the input, every layer, shared; class token with
and without position; registers; resize to other grids; patch-size resize.
"""

import itertools
import math

import numpy as np
import pytest
import scipy.ndimage
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from vitrail.models import ViT, ViTSpec, build, parse, resize_patches, resize_positions
from vitrail.models.layers.blocks import Block
from vitrail.models.positions.absolute import Positions, sincos_2d
from vitrail.models.positions.grid_resizing import resize_grid, resize_offsets
from vitrail.models.positions.relative import RelativeBias, RelativePositions
from vitrail.models.spec import ResizeRule

TINY = "ViT/8@24x32,depth=3,width=16,heads=2,mlp=24,classes=5"


def randomized(name: str) -> ViT:
    """Build a tiny model whose every parameter is random."""
    model = build(name)
    assert isinstance(model, ViT)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.double().eval()


def encode_slowly(model: ViT, x: Tensor, added: list[Tensor | None]) -> Tensor:
    """Encode as the paper writes it, adding `added[layer]` to each layer's input."""
    weight, bias = model.embedding.weight.flatten(1), model.embedding.bias
    assert bias is not None
    patches = [
        x[:, :, top : top + 8, left : left + 8].flatten(1) @ weight.T + bias
        for top in range(0, x.shape[2], 8)
        for left in range(0, x.shape[3], 8)
    ]
    tokens = torch.stack(patches, dim=1)
    prefix = [p for p in (model.class_token, model.registers) if p is not None]
    tokens = torch.cat([*(p.expand(len(x), -1, -1) for p in prefix), tokens], dim=1)
    for block, table in zip(model.blocks, added, strict=True):
        tokens = block(tokens if table is None else tokens + table)
    return model.norm(tokens)


def table_2d(positions: Positions) -> Tensor:
    """Look up and concatenate the X and the Y embedding of each patch."""
    rows = [
        torch.cat([positions.x[column], positions.y[row]])
        for row in range(len(positions.y))
        for column in range(len(positions.x))
    ]
    return torch.stack([positions.class_token[0], *rows])


@pytest.mark.parametrize("at", ["input", "every-layer", "shared"])
@pytest.mark.parametrize("kind", ["learned-1d", "learned-2d", "sincos-2d"])
def test_positions_are_added_where_the_spec_says(kind: str, at: str) -> None:
    model = randomized(f"{TINY},position={kind},position_at={at}")
    x = torch.randn(2, 3, 24, 32, dtype=torch.float64)
    tables: list[Tensor] = []
    for positions in model.positions:
        assert isinstance(positions, Positions)
        if kind == "learned-1d":
            tables.append(positions.table)
        elif kind == "learned-2d":
            tables.append(table_2d(positions))
        else:
            tables.append(torch.cat([torch.zeros(1, 16).double(), sincos_slowly(3, 4, 16)]))
    assert len(tables) == {"input": 1, "every-layer": 3, "shared": 1}[at]
    added = {"input": [tables[0], None, None], "shared": tables * 3}.get(at, tables)
    torch.testing.assert_close(model.tokens(x), encode_slowly(model, x, list(added)))


def test_no_positions_makes_the_encoder_blind_to_order() -> None:
    model = randomized(f"{TINY},position=none,pool=gap")
    x = torch.randn(2, 3, 24, 32, dtype=torch.float64)
    torch.testing.assert_close(model(x), model(x.roll(8, dims=2)))
    torch.testing.assert_close(model.tokens(x), encode_slowly(model, x, [None] * 3))


def test_tokens_without_position_are_left_alone() -> None:
    model = randomized(f"{TINY},registers=2,class_position=false")
    x = torch.randn(1, 3, 24, 32, dtype=torch.float64)
    positions = model.positions[0]
    assert isinstance(positions, Positions)
    table = torch.cat([torch.zeros(3, 16).double(), positions.table])
    torch.testing.assert_close(model.tokens(x), encode_slowly(model, x, [table, None, None]))
    covered = randomized(f"{TINY},registers=2")
    positions = covered.positions[0]
    assert isinstance(positions, Positions)
    parts = [positions.table[:1], torch.zeros(2, 16).double(), positions.table[1:]]
    expected = encode_slowly(covered, x, [torch.cat(parts), None, None])
    torch.testing.assert_close(covered.tokens(x), expected)


@pytest.mark.parametrize("at", ["every-layer", "shared"])
def test_relative_attention_is_the_papers(at: str) -> None:
    """Each query also meets an embedding of the offset p_q - p_k; both logits are summed."""
    model = randomized(f"{TINY},position=relative,position_at={at},depth=2")
    x = torch.randn(2, 3, 24, 32, dtype=torch.float64)
    assert len(model.positions) == (2 if at == "every-layer" else 1)
    tokens, _ = model.embed(x)
    for layer, block in enumerate(model.blocks):
        positions = model.positions[layer if at == "every-layer" else 0]
        assert isinstance(block, Block)
        assert isinstance(positions, RelativePositions)
        tokens = tokens + attend_slowly(block, tokens, positions.table)
        tokens = tokens + block.mlp(tokens)
    torch.testing.assert_close(model.tokens(x), model.norm(tokens))


def attend_slowly(block: Block, x: Tensor, offsets: Tensor) -> Tensor:
    """Attend head by head, query by query, key by key."""
    query, key, value = block.attention.qkv(block.attention.norm(x)).chunk(3, dim=-1)
    tokens, size = x.shape[1], 8
    mixed = torch.zeros_like(x)
    for head in (slice(0, size), slice(size, 2 * size)):
        logits = torch.zeros(len(x), tokens, tokens, dtype=x.dtype)
        for q in range(tokens):
            for k in range(tokens):
                content = (query[:, q, head] * key[:, k, head]).sum(-1)
                relative = query[:, q, head] @ offsets[(q - k) + tokens - 1, head]
                logits[:, q, k] = (content + relative) / math.sqrt(size)
        mixed[:, :, head] = logits.softmax(-1) @ value[:, :, head]
    return block.attention.output(mixed)


def sincos_slowly(rows: int, columns: int, width: int) -> Tensor:
    table = torch.zeros(rows * columns, width, dtype=torch.float64)
    quarter = width // 4
    for row in range(rows):
        for column in range(columns):
            for i in range(quarter):
                frequency = 1 / 10_000 ** (i / (quarter - 1))
                cell = table[row * columns + column]
                cell[i], cell[quarter + i] = (
                    math.sin(column * frequency),
                    math.cos(column * frequency),
                )
                cell[2 * quarter + i] = math.sin(row * frequency)
                cell[3 * quarter + i] = math.cos(row * frequency)
    return table


def test_sincos_equals_its_formula() -> None:
    made = sincos_2d((3, 5), 24, torch.empty(1, dtype=torch.float64))
    torch.testing.assert_close(made, sincos_slowly(3, 5, 24))


@given(st.integers(1, 7), st.integers(1, 7), st.integers(1, 9), st.integers(1, 9))
def test_google_resize_is_scipys_zoom(rows: int, columns: int, high: int, wide: int) -> None:
    table = torch.randn(rows * columns, 3, dtype=torch.float64)
    ours = resize_grid(table, (rows, columns), (high, wide))
    grid = table.numpy().reshape(rows, columns, 3)
    zoom = (high / rows, wide / columns, 1)
    theirs = np.asarray(scipy.ndimage.zoom(grid, zoom, order=1)).reshape(-1, 3)
    np.testing.assert_allclose(ours.numpy(), theirs, atol=1e-9)


@pytest.mark.parametrize("rule", ["google", "timm", "huggingface", "torchvision"])
def test_resize_keeps_the_class_row_and_constant_tables(rule: ResizeRule) -> None:
    table = torch.cat([torch.full((1, 4), 7.0), torch.full((12, 4), 2.0)])
    new = resize_positions(table, (3, 4), (5, 6), rule, prefix=1)
    assert new.shape == (31, 4)
    torch.testing.assert_close(new, torch.cat([table[:1], torch.full((30, 4), 2.0)]))


@pytest.mark.parametrize("rule", ["google", "timm", "huggingface", "torchvision"])
def test_resize_to_one_column_does_not_depend_on_memory_layout(rule: ResizeRule) -> None:
    grid = torch.randn(1, 5, 3, 4, dtype=torch.float64)
    mode = "bilinear" if rule == "google" else "bicubic"
    corners, antialias = rule in ("google", "torchvision"), rule == "timm"
    expected = F.interpolate(grid, (4, 1), mode=mode, align_corners=corners, antialias=antialias)
    table = grid[0].permute(1, 2, 0).contiguous().flatten(0, 1)
    torch.testing.assert_close(resize_grid(table, (3, 4), (4, 1), rule), expected[0].flatten(1).T)


ABSOLUTE = itertools.product(
    ["none", "learned-1d", "learned-2d", "sincos-2d"], ["input", "every-layer", "shared"]
)
RELATIVE = [("relative", "every-layer"), ("relative", "shared")]


@pytest.mark.parametrize(("kind", "at"), [*ABSOLUTE, *RELATIVE])
def test_another_size_than_trained_works(kind: str, at: str) -> None:
    model = randomized(f"{TINY},position={kind},position_at={at}")
    for height, width in [(24, 32), (32, 24), (8, 8), (40, 16)]:
        x = torch.randn(1, 3, height, width, dtype=torch.float64)
        assert model.tokens(x).shape == (1, 1 + height * width // 64, 16)
        assert model(x).isfinite().all()


def test_resized_model_equals_a_model_with_resized_table() -> None:
    small, large = randomized(TINY), randomized(TINY.replace("24x32", "40x48"))
    state = small.state_dict()
    state["positions.0.table"] = resize_positions(
        state["positions.0.table"], (3, 4), (5, 6), prefix=1
    )
    large.load_state_dict(state)
    x = torch.randn(2, 3, 40, 48, dtype=torch.float64)
    torch.testing.assert_close(small(x), large(x))


@given(st.integers(2, 6), st.integers(2, 6), st.integers(0, 6), st.integers(0, 6))
def test_resized_patches_embed_enlarged_images_alike(p: int, q: int, more: int, wider: int) -> None:
    """FlexiViT's promise for larger patches: the embedding of the resized patch is the same."""
    weight = torch.randn(5, 3, p, q, dtype=torch.float64)
    patch = torch.randn(1, 3, p, q, dtype=torch.float64)
    new = (p + more, q + wider)
    resized = F.interpolate(patch, new, mode="bilinear", align_corners=False, antialias=True)
    before = torch.einsum("ochw,bchw->bo", weight, patch)
    after = torch.einsum("ochw,bchw->bo", resize_patches(weight, new), resized)
    torch.testing.assert_close(after, before)


def test_positions_cost_no_time_at_the_trained_size() -> None:
    """The table itself is used, not a copy."""
    spec = parse(TINY)
    assert isinstance(spec, ViTSpec)
    positions = Positions(spec)
    assert positions(spec.grid, positions.table) is positions.table


@pytest.mark.parametrize("token", [True, False])
def test_a_relative_bias_is_that_of_the_offset(token: bool) -> None:
    """BEiT's table, one pair of tokens at a time; the class token has rows of its own."""
    options = "pool=token" if token else "pool=gap"
    spec = parse(f"ViT/8@24x40,depth=1,width=8,heads=2,mlp=8,position=relative-2d,{options},"
                 "position_at=every-layer")  # fmt: skip
    assert isinstance(spec, ViTSpec)
    bias = RelativeBias(spec)
    nn.init.normal_(bias.table)
    found = bias(torch.zeros(1, 2, spec.tokens, 4), spec.grid)[0]
    columns, offsets = 5, 5 * 9
    for q in range(spec.tokens):
        for k in range(spec.tokens):
            places = [divmod(token_number - token, columns) for token_number in (q, k)]
            row = (places[0][0] - places[1][0] + 2) * 9 + places[0][1] - places[1][1] + 4
            if token and 0 in (q, k):
                row = offsets + (2 if q == k else 0 if q == 0 else 1)
            torch.testing.assert_close(found[:, q, k], bias.table[row])


def test_a_relative_bias_is_resized_to_other_grids() -> None:
    """A table that grows evenly with the offset stays even; the class token's rows are kept."""
    offsets = torch.arange(5.0).repeat(5, 1).flatten()
    table = torch.cat([offsets, torch.tensor([7.0, 8.0, 9.0])])[:, None]
    found = resize_offsets(table, (3, 3), (3, 5), "torchvision")
    assert found.shape == (5 * 9 + 3, 1)
    torch.testing.assert_close(found[-3:], table[-3:])
    torch.testing.assert_close(found[4, 0], torch.tensor(2.0))  # offset 0
    assert (found[:9, 0].diff() > 0).all()


@pytest.mark.parametrize("new", [(16, 16), (16, 27), (40, 37)])
def test_dinov2_resizes_by_a_tenth_of_a_cell_more(new: tuple[int, int]) -> None:
    """As interpolate_pos_encoding of facebookresearch/dinov2, with its interpolate_offset."""
    table = torch.randn(1 + 37 * 37, 8, generator=torch.Generator().manual_seed(0))
    found = resize_positions(table, (37, 37), new, "dinov2", 1)
    grid = table[1:].reshape(1, 37, 37, 8).permute(0, 3, 1, 2)
    scale = (float(new[0] + 0.1) / 37, float(new[1] + 0.1) / 37)
    theirs = torch.nn.functional.interpolate(
        grid, mode="bicubic", antialias=False, scale_factor=scale
    )
    assert theirs.shape[2:] == new
    assert torch.equal(found[0], table[0])
    torch.testing.assert_close(found[1:], theirs[0].flatten(1).T)
    plain = resize_positions(table, (37, 37), new, "huggingface", 1)
    assert (found - plain).abs().max() > 1e-2
