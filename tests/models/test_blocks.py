"""Attention, MLP, pooling, axial blocks, dropout and stochastic depth against plain versions."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.models import BiT, ViT, ViTSpec, build, parse
from vitrail.models.bit import AxialMixing
from vitrail.models.hybrid import ConvStem
from vitrail.models.layers.blocks import AxialBlock, Block
from vitrail.models.layers.heads import AttentionPool
from vitrail.models.layers.mlp import MLP
from vitrail.models.layers.norms import LayerScale
from vitrail.models.layers.self_attention import AttentionMix, SelfAttention
from vitrail.models.noise import StochasticDepth


def randomize(module: nn.Module) -> None:
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.4)
    module.double().eval()


def attend(attention: SelfAttention, x: Tensor, bias: Tensor | None = None) -> Tensor:
    """softmax(q k / sqrt(d) + bias) v for tokens (batch, tokens, width), one head at a time."""
    query, key, value = attention.qkv(attention.norm(x)).chunk(3, dim=-1)
    size = x.shape[-1] // attention.heads
    heads = []
    for head in range(attention.heads):
        part = slice(head * size, (head + 1) * size)
        q, k = attention.query_norm(query[..., part]), attention.key_norm(key[..., part])
        logits = q @ k.transpose(1, 2) / math.sqrt(size)
        logits = logits if bias is None else logits + bias[:, head]
        heads.append(logits.softmax(-1) @ value[..., part])
    return attention.output(torch.cat(heads, dim=-1))


@pytest.mark.parametrize("norm_eps", [None, 1e-6])
@pytest.mark.parametrize("bias", [True, False])
def test_attention_is_softmax_of_queries_and_keys(bias: bool, norm_eps: float | None) -> None:
    norms = [None if norm_eps is None else nn.LayerNorm(4, norm_eps) for _ in range(2)]
    attention = SelfAttention(
        12, 3, bias=bias, norm=nn.LayerNorm(12), query_norm=norms[0], key_norm=norms[1]
    )
    randomize(attention)
    x = torch.randn(2, 7, 12, dtype=torch.float64)
    torch.testing.assert_close(attention(x), attend(attention, x))


@pytest.mark.parametrize("biased", [False, True])
def test_attention_in_bfloat16_differs_by_rounding_only(biased: bool) -> None:
    shapes = [(2, 3, 7, 16)] * 3 + ([(2, 3, 7, 7)] if biased else [])
    given = [torch.randn(shape).bfloat16().requires_grad_() for shape in shapes]
    exact = [each.detach().double().requires_grad_() for each in given]
    query, key, value, *bias = exact
    logits = query @ key.mT / 4 + (bias[0] if biased else 0)
    expected = logits.softmax(-1) @ value
    found = AttentionMix()(*given[:3], given[3] if biased else None)
    weight = torch.randn(expected.shape)
    for result in (found, expected):
        (result * weight).sum().backward()
    torch.testing.assert_close(found.double(), expected, atol=0.04, rtol=0)
    for rounded, each in zip(given, exact, strict=True):
        assert rounded.grad is not None
        assert each.grad is not None
        torch.testing.assert_close(rounded.grad.double(), each.grad, atol=0.1, rtol=0)


def test_block_is_equations_2_and_3() -> None:
    spec = parse("ViT/8@16,depth=1,width=12,heads=3,mlp=20,layer_scale=0.5")
    assert isinstance(spec, ViTSpec)
    block = Block(spec, 0.0)
    randomize(block)
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    scale1, scale2 = (m.factor for m in block.modules() if isinstance(m, LayerScale))
    middle = x + scale1 * attend(block.attention, x)
    hidden = block.mlp.hidden(block.mlp.norm(middle))
    gelu = 0.5 * hidden * (1 + torch.tanh(math.sqrt(2 / math.pi) * (hidden + 0.044715 * hidden**3)))
    torch.testing.assert_close(block(x), middle + scale2 * block.mlp.output(gelu))


def make_mlp(activation: str) -> MLP:
    spec = parse(f"ViT/8@16,depth=1,width=4,heads=1,mlp=4,activation={activation}")
    assert isinstance(spec, ViTSpec)
    return MLP(spec, spec.mlp, dropout=0.0)


def test_activations() -> None:
    x = torch.randn(3, 8, dtype=torch.float64)
    exact = 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))
    torch.testing.assert_close(make_mlp("gelu").activate(x), exact)
    gated = x[:, :4] * torch.sigmoid(x[:, :4]) * x[:, 4:]
    torch.testing.assert_close(make_mlp("swiglu").activate(x), gated)


def test_axial_block_is_rows_then_columns() -> None:
    spec = parse("AxialViT/8@24x32,depth=1,width=12,heads=3,mlp=20")
    assert isinstance(spec, ViTSpec)
    block = AxialBlock(spec, 0.0)
    randomize(block)
    x = torch.randn(2, 3, 4, 12, dtype=torch.float64)
    rows = torch.stack([block.row(x[:, row]) for row in range(3)], dim=1)
    columns = torch.stack([block.column(rows[:, :, column]) for column in range(4)], dim=2)
    torch.testing.assert_close(block(x), columns)


def test_axial_vit_sees_rows_and_columns_only() -> None:
    """One axial block mixes a patch with its row and its column's rows; two blocks see all."""
    model = build("AxialViT/8@32,depth=1,width=12,heads=3,mlp=20")
    randomize(model)
    x = torch.randn(1, 3, 32, 32, dtype=torch.float64, requires_grad=True)
    assert isinstance(model, ViT)
    x0, _ = model.embed(x)
    row_output = model.blocks[0].row(x0.unflatten(1, (4, 4)))  # pyright: ignore[reportCallIssue]
    (gradient,) = torch.autograd.grad(row_output[0, 1, 2].sum(), x)
    seen = gradient.abs().amax(1)[0].unflatten(0, (4, 8)).unflatten(2, (4, 8)).amax((1, 3)) > 0
    assert seen.tolist() == [[row == 1] * 4 for row in range(4)]


def test_axial_mixing_is_relative_attention_along_each_axis() -> None:
    mixing = AxialMixing(8, 2, (3, 4), stride=1)
    randomize(mixing)
    x = torch.randn(2, 8, 3, 4, dtype=torch.float64)
    cells = x.permute(0, 2, 3, 1)
    rows = torch.stack(
        [line(mixing.row, cells[:, i], mixing.row_offsets.table) for i in range(3)], 1
    )
    table = mixing.column_offsets.table
    columns = torch.stack([line(mixing.column, rows[:, :, j], table) for j in range(4)], 2)
    torch.testing.assert_close(mixing(x), columns.permute(0, 3, 1, 2))


def line(attention: SelfAttention, x: Tensor, table: Tensor) -> Tensor:
    tokens, size = x.shape[1], x.shape[2] // attention.heads
    query = attention.qkv(x).chunk(3, dim=-1)[0]
    bias = x.new_zeros(len(x), attention.heads, tokens, tokens)
    for head in range(attention.heads):
        part = slice(head * size, (head + 1) * size)
        for q in range(tokens):
            for k in range(tokens):
                offset = table[q - k + tokens - 1, part]
                bias[:, head, q, k] = query[:, q, part] @ offset / math.sqrt(size)
    return attend(attention, x, bias)


def test_axial_resnet_has_no_3x3_convolution_and_takes_other_sizes() -> None:
    model = build("BiT@64,stages=1-1,width=32,heads=4,classes=3").eval()
    assert isinstance(model, BiT)
    convolutions = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    assert sorted({m.kernel_size for m in convolutions}) == [(1, 1), (7, 7)]
    for height, width in [(64, 64), (96, 40), (33, 65)]:
        rows, columns = -(-height // 8), -(-width // 8)
        assert model.tokens(torch.randn(1, 3, height, width)).shape == (1, rows * columns, 256)


def test_attention_pooling_is_one_query_and_an_mlp() -> None:
    spec = parse("ViT/8@16,depth=1,width=12,heads=3,mlp=20,pool=map")
    assert isinstance(spec, ViTSpec)
    pool = AttentionPool(spec)
    randomize(pool)
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    query, (key, value) = pool.query(pool.probe), pool.key_value(x).chunk(2, dim=-1)
    heads = []
    for head in range(3):
        part = slice(4 * head, 4 * head + 4)
        weights = (query[..., part] @ key[..., part].transpose(1, 2) / 2).softmax(-1)
        heads.append(weights @ value[..., part])
    mixed = pool.output(torch.cat(heads, dim=-1))[:, 0]
    assert pool.mlp is not None
    torch.testing.assert_close(pool(x), mixed + pool.mlp(mixed))


def test_dropout_stands_where_the_paper_puts_it() -> None:
    """After every dense layer except qkv, and after adding positions (Appendix B.1)."""
    model = build("ViT/8@16,depth=2,width=12,heads=3,mlp=20,dropout=0.25")
    places = {n: m.p for n, m in model.named_modules() if isinstance(m, nn.Dropout)}
    blocks = [
        f"blocks.{i}.{part}" for i in range(2) for part in ("after1.0", "after2.0", "mlp.dropout")
    ]
    assert places == dict.fromkeys(["dropout", *blocks], 0.25)
    model.head.output = nn.Identity()  # pyright: ignore[reportAttributeAccessIssue]
    x = torch.randn(1, 3, 16, 16)
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), model(x))


def test_attention_dropout_acts_in_training_only() -> None:
    attention = SelfAttention(12, 3, dropout=0.5)
    x = torch.randn(1, 5, 12)
    assert not torch.equal(attention(x), attention(x))
    attention.eval()
    assert torch.equal(attention(x), attention(x))


def test_stochastic_depth_drops_whole_images_and_keeps_the_mean() -> None:
    layer = StochasticDepth(0.25)
    dropped = layer(torch.ones(4000, 3, 2))
    assert dropped.unique().tolist() == [0.0, pytest.approx(4 / 3)]
    assert dropped.flatten(1).unique(dim=1).shape[1] == 1  # an image as a whole
    assert dropped.mean().item() == pytest.approx(1, abs=0.05)
    assert torch.equal(layer.eval()(torch.ones(4, 3)), torch.ones(4, 3))


def test_a_single_block_has_all_of_stochastic_depth() -> None:
    model = build("ViT/4@8,depth=1,width=8,heads=2,mlp=8,stochastic_depth=0.5")
    assert {m.rate for m in model.modules() if isinstance(m, StochasticDepth)} == {0.5}


def test_stochastic_depth_grows_linearly_with_depth() -> None:
    model = build("ViT/8@16,depth=5,width=12,heads=3,mlp=20,stochastic_depth=0.4")
    rates = [m.rate for m in model.modules() if isinstance(m, StochasticDepth)]
    assert rates == pytest.approx([0.1, 0.1, 0.2, 0.2, 0.3, 0.3, 0.4, 0.4])


def test_gap_leaves_registers_out() -> None:
    model = build("ViT/8@16,depth=1,width=12,heads=3,mlp=20,pool=gap,registers=3").eval()
    x = torch.randn(2, 3, 16, 16)
    tokens = model.tokens(x)
    assert tokens.shape == (2, 7, 12)
    torch.testing.assert_close(model.features(x), tokens[:, 3:].mean(1))


def test_bit_is_a_pre_activation_resnet() -> None:
    model = build("BiT@64,stages=1-1,width=32,classes=3").double().eval()
    assert isinstance(model, BiT)
    x = torch.randn(2, 3, 64, 64, dtype=torch.float64)

    def conv(layer: nn.Module, y: Tensor, stride: int, padding: int) -> Tensor:
        weight = layer.weight
        assert isinstance(weight, Tensor)
        flat = weight.flatten(1)
        std = (flat.var(1, unbiased=False) + 1e-10).sqrt()
        weight = ((flat - flat.mean(1, keepdim=True)) / std[:, None]).view_as(weight)
        return F.conv2d(y, weight, stride=stride, padding=padding)

    y = F.max_pool2d(conv(model.root, x, 2, 3), 3, 2, 1)
    for block, stride in zip(model.blocks, (1, 2), strict=True):
        a = F.relu(block.norm1(y))  # pyright: ignore[reportCallIssue]
        shortcut = conv(block.shortcut, a, stride, 0)  # pyright: ignore[reportArgumentType]
        b = F.relu(block.norm2(conv(block.conv1, a, 1, 0)))  # pyright: ignore
        b = F.relu(block.norm3(conv(block.conv2, b, stride, 1)))  # pyright: ignore
        y = shortcut + conv(block.conv3, b, 1, 0)  # pyright: ignore[reportArgumentType]
    y = F.relu(model.norm(y))
    torch.testing.assert_close(model.features(x), y.mean((2, 3)))


def test_conv_stem_halves_the_image_once_a_stage() -> None:
    name = "Hybrid/1@16,stem=conv,stages=2-1,stem_width=32,depth=1,width=8,heads=2,mlp=8"
    model = build(name).double().eval()
    assert isinstance(model, ViT)
    assert isinstance(model.stem, ConvStem)
    for parameter in model.stem.parameters():
        nn.init.normal_(parameter)
    x = torch.randn(2, 3, 16, 16, dtype=torch.float64)

    def unit(layer: nn.Module, y: Tensor, pool: int) -> Tensor:
        """Convolve by filters of mean 0 and std 1, pool, and normalize 16 channels together."""
        weight = layer.get_parameter("conv.weight")
        gain, bias = layer.get_parameter("norm.weight"), layer.get_parameter("norm.bias")
        flat = weight.flatten(1)
        std = flat.var(1, unbiased=False).sqrt() + 1e-5
        filters = ((flat - flat.mean(1, keepdim=True)) / std[:, None]).view_as(weight)
        y = F.max_pool2d(F.conv2d(y, filters, padding=1), pool)
        groups = y.unflatten(1, (-1, 16))
        var, mean = torch.var_mean(groups, (2, 3, 4), correction=0, keepdim=True)
        normed = ((groups - mean) / (var + 1e-6).sqrt()).view_as(y)
        return normed * gain[:, None, None] + bias[:, None, None]

    first, second, third = model.stem.blocks
    y = F.relu(unit(first, F.relu(unit(model.stem, x, 1)), 2))
    y = F.relu(unit(third, F.relu(y + unit(second, y, 1)), 2))
    assert y.shape == (2, 128, 4, 4)
    expected = model.embedding(y).flatten(2).transpose(1, 2)
    torch.testing.assert_close(model.embed_patches(x), (expected, (4, 4)))


def test_an_empty_batch_has_no_logits() -> None:
    for pool in ("token", "gap", "map"):
        model = build(f"ViT/8@16,depth=1,width=16,heads=2,mlp=16,classes=3,pool={pool}")
        assert model(torch.zeros(0, 3, 16, 16)).shape == (0, 3)
