"""Recording: weights equal plain ones and a peer's, outputs keep their bits, nothing stays behind.

Covers: ViT, registers, relative positions, q and k norms, axial blocks, AxialResNet, hybrid, BiT;
layers, heads and rows; half precision, autocast, compiled, wrapped; errors.
"""

import math
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vitrail
from tests.cases import slow
from tests.inspection.recorded_models import (
    MODELS,
    PLAIN,
    compile_blocks,
    compile_in_place,
    compile_whole,
    images,
    make,
)
from tests.parity import peers
from tests.shelf import refusal
from vitrail.inspection import Chunk, record
from vitrail.inspection.record import join_chunks
from vitrail.models import ViT
from vitrail.models.layers.self_attention import SelfAttention
from vitrail.models.positions.relative import RelativePositions

MODULE = import_module("vitrail.inspection.record")  # whose name in its package is the function's


def plain_attention(
    site: SelfAttention, x: Tensor, relative: RelativePositions | None = None
) -> Tensor:
    """softmax(q k / sqrt(d) + bias) of x (lines, tokens, width), one pair of tokens at a time."""
    query, key, _ = site.qkv(site.norm(x)).chunk(3, dim=-1)
    size = x.shape[-1] // site.heads
    tokens = x.shape[1]
    logits = torch.empty(len(x), site.heads, tokens, tokens, dtype=x.dtype)
    for head in range(site.heads):
        part = slice(head * size, (head + 1) * size)
        q, k = site.query_norm(query[..., part]), site.key_norm(key[..., part])
        logits[:, head] = torch.einsum("nqd,nkd->nqk", q, k) / math.sqrt(size)
        if relative is not None:
            for i in range(tokens):
                for j in range(tokens):
                    offset = relative.table[i - j + tokens - 1, part]
                    logits[:, head, i, j] += q[:, i] @ offset / math.sqrt(size)
    return logits.softmax(-1)


@torch.no_grad()
def explicit(model: ViT, x: Tensor) -> list[Tensor]:
    """Give each block's attention, its input written out by running the model block by block."""
    found = []
    tokens, grid = model.embed(x)
    for layer, block in enumerate(model.blocks):
        tokens = model.add_positions(tokens, grid, layer) if layer else tokens
        tables = [t for t in model.positions if isinstance(t, RelativePositions)]
        relative = tables[layer % len(tables)] if tables else None
        site = block.get_submodule("attention")
        assert isinstance(site, SelfAttention)
        found.append(plain_attention(site, tokens, relative))
        tokens = block(tokens, relative)
    return found


def hooks(module: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in module.modules())


@pytest.mark.parametrize(
    "name", ["plain", "registers", "relative", "every-layer", "pooling", "hybrid"]
)
def test_attention_equals_an_explicit_softmax(name: str) -> None:
    model = make(name)
    assert isinstance(model, ViT)
    x = images(model)
    with torch.no_grad(), record(model, attention="all", tokens="all") as tape:
        logits = model(x)
    for layer, weights in enumerate(explicit(model, x)):
        torch.testing.assert_close(tape.attention[layer], weights, atol=1e-6, rtol=1e-5)
    assert list(tape.attention) == list(range(model.spec.depth))
    with torch.no_grad():
        assert torch.equal(model.classify(tape.tokens[-1]), logits)


def test_axial_attention_is_a_softmax_over_rows_then_columns() -> None:
    model = make("axial")
    assert isinstance(model, ViT)
    x = images(model)
    with torch.no_grad(), record(model, attention="all", tokens=[0]) as tape:
        model(x)
    tokens, grid = model.embed(x)
    assert isinstance(grid, tuple)
    rows, columns = grid
    tokens = tokens.unflatten(1, grid)
    block: Any = model.blocks[0]
    row = plain_attention(block.row.attention, tokens.flatten(0, 1)).unflatten(0, (2, rows))
    after = block.row(tokens)
    lines = after.transpose(1, 2).flatten(0, 1)
    column = plain_attention(block.column.attention, lines).unflatten(0, (2, columns))
    whole = torch.zeros(2, 2, 2, rows, columns, rows, columns)  # which, image, head, …
    for r in range(rows):
        for c in range(columns):
            whole[0, :, :, r, c, r, :] = row[:, r, :, c, :]
            whole[1, :, :, r, c, :, c] = column[:, c, :, r, :]
    for layer in (0, 1):
        expected = whole[layer].flatten(4, 5).flatten(2, 3)
        torch.testing.assert_close(tape.attention[layer], expected, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(tape.tokens[0], block(tokens).flatten(1, 2))
    assert len(tape.attention) == 4


def test_axial_resnet_rows_of_one_image() -> None:
    model = make("AxialResNet-50@32,stages=1-1,width=32,heads=2,classes=3")
    x = images(model)
    with torch.no_grad(), record(model, attention="all", tokens="all", rows=[5]) as tape:
        model(x)
    assert [tuple(tape.attention[layer].shape) for layer in (0, 3)] == [(2, 2, 1, 64)] * 2
    row = tape.attention[0][:, :, 0].unflatten(-1, (8, 8))
    torch.testing.assert_close(row[:, :, 0].sum(-1), torch.ones(2, 2))
    assert row[:, :, 1:].abs().max() == 0
    assert [tuple(t.shape) for t in tape.tokens.values()] == [(2, 64, 128), (2, 16, 256)]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("how", ["float32", "bfloat16", "autocast", "inference"])
def test_outputs_keep_their_bits(name: str, how: str) -> None:
    model = make(name)
    x = images(model)
    if how == "bfloat16":
        model, x = model.bfloat16(), x.bfloat16()
    with (
        torch.inference_mode(how == "inference"),
        torch.autocast("cpu", torch.bfloat16, enabled=how == "autocast"),
    ):
        before = model(x)
        with record(model, attention="all", tokens="all") as tape:
            during = model(x)
    assert torch.equal(before, during)
    assert tape.attention[0].dtype == torch.float32
    torch.testing.assert_close(tape.attention[-1].sum(-1), torch.ones(()).expand(
        tape.attention[-1].shape[:-1]))  # fmt: skip
    assert hooks(model) == 0


def test_half_precision_is_that_of_its_own_queries_and_keys() -> None:
    model = make("plain").bfloat16()
    x = images(model).bfloat16()
    seen: dict[str, Tensor] = {}
    site: Any = model.blocks[1].get_submodule("attention")
    for name in ("query_norm", "key_norm"):
        site.get_submodule(name).register_forward_hook(
            lambda _, inputs, output, name=name: seen.update({name: output})
        )
    with torch.no_grad(), record(model, attention=[1]) as tape:
        model(x)
    logits = seen["query_norm"].double() @ seen["key_norm"].double().mT / math.sqrt(8)
    expected = logits.softmax(-1).float()
    torch.testing.assert_close(tape.attention[1], expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", ["plain", "relative", "axial"])
@pytest.mark.parametrize("chunk", [1, 400, 2**19])
def test_layers_heads_and_rows_are_parts_of_the_whole(
    name: str, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make(name)
    x = images(model, 3)
    with torch.no_grad(), record(model, attention="all") as whole:
        model(x)
    monkeypatch.setattr(MODULE, "_CHUNK", chunk)
    chunks: list[Chunk] = []
    with (
        torch.no_grad(),
        record(model, attention=[-1], heads=[1, 0], rows=[4, -1]) as tape,
        record(model, attention=[0], each=chunks.append) as empty,
    ):
        model(x)
    last = max(whole.attention)
    assert list(tape.attention) == [last]
    torch.testing.assert_close(
        tape.attention[-1], whole.attention[last][:, [1, 0]][:, :, [4, -1]], atol=1e-6, rtol=1e-5
    )
    assert not empty.attention
    torch.testing.assert_close(join_chunks(chunks), whole.attention[0], atol=1e-6, rtol=1e-5)
    biggest = max(part.weights.numel() for part in chunks)
    heads, tokens = whole.attention[0].shape[1], whole.attention[0].shape[-1]
    assert biggest <= max(chunk, tokens**2 * (heads if name == "relative" else 1))


def test_attention_equals_transformers_eager_one() -> None:
    hf = peers.load("transformers.models.vit.modeling_vit")
    options = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 3}
    options |= {"image_size": 32, "patch_size": 8, "intermediate_size": 32, "num_labels": 5}
    config = hf.ViTConfig(**options, attn_implementation="eager")
    peer = peers.randomize(hf.ViTForImageClassification(config), torch.float32)
    from tests.parity.transformers_models import RULES

    model = vitrail.build(f"{PLAIN},activation=gelu,norm_eps=1e-12")
    peers.fill(model, peers.translate(peer.state_dict(), RULES))
    x = images(model)
    with torch.no_grad(), record(model, attention="all") as tape:
        logits = model(x)
    with torch.no_grad():
        theirs = peer(x, output_attentions=True)
    torch.testing.assert_close(logits, theirs.logits, atol=1e-5, rtol=1e-5)
    for layer, weights in enumerate(theirs.attentions):
        torch.testing.assert_close(tape.attention[layer], weights, atol=1e-5, rtol=0)


@pytest.mark.parametrize("how", [compile_whole, compile_in_place, compile_blocks])
@pytest.mark.parametrize("first", [True, slow(False)], ids=["run-before", "compiled-inside"])
def test_compiled_models_are_recorded(how: Callable[[nn.Module], nn.Module], first: bool) -> None:
    torch.compiler.reset()
    model = make("plain")
    x = images(model)
    with torch.no_grad():
        with record(model, attention="all", tokens=[1]) as expected:
            before = model(x)
        compiled = how(model)
        if first:
            compiled(x)
        with record(compiled, attention="all", tokens=[1]) as tape:
            during = compiled(x)
        after = compiled(x)
    assert torch.equal(before, during)
    assert torch.equal(during, after)
    for layer, weights in expected.attention.items():
        assert torch.equal(tape.attention[layer], weights)
    assert torch.equal(tape.tokens[1], expected.tokens[1])
    assert hooks(compiled) == 0
    torch.compiler.reset()


def test_training_noise_goes_on_as_without_a_tape() -> None:
    model = vitrail.build(f"{PLAIN},dropout=0.3,attention_dropout=0.3,stochastic_depth=0.3").train()
    x = images(model)
    outputs = []
    for attention in (None, "all"):
        torch.manual_seed(1)
        with record(model, attention=attention):
            outputs += [model(x), model(x)]
    assert torch.equal(outputs[0], outputs[2])
    assert torch.equal(outputs[1], outputs[3])


def test_checkpointing_is_as_before_and_no_block_is_heard_twice() -> None:
    model = make("plain").train()
    model.checkpointing = True
    layers: list[int] = []
    with record(model, attention="all", each=lambda chunk: layers.append(chunk.layer)):
        model(images(model)).sum().backward()
    assert layers == [0, 1, 2]
    assert model.checkpointing


def test_a_wrapped_model_is_found() -> None:
    model = make("plain")
    x = images(model)
    with torch.no_grad(), record(nn.Sequential(nn.Identity(), model), attention=[0]) as tape:
        model(x)
    assert tape.attention[0].shape == (2, 3, 17, 17)
    assert "Linear" in refusal(record(nn.Linear(2, 2), attention=[0]).__enter__)


def test_nothing_stays_behind_after_an_exception() -> None:
    model = make("plain")
    model.checkpointing = True

    def fail(chunk: Chunk) -> None:
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"), record(model, attention="all", each=fail):
        model(images(model))
    assert hooks(model) == 0
    assert model.checkpointing
    with pytest.raises(ValueError, match="patches"), record(model, attention="all"):
        model(torch.randn(1, 3, 30, 30))
    assert hooks(model) == 0
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"attention": [3]}, "has no attention layer 3; it has 3: 0 to 2, or -1 for the last"),
        ({"tokens": [-4]}, "has no block -4"),
        ({"attention": [0], "heads": [3]}, "has no head 3; it has 3"),
        ({"attention": "last"}, "layers are numbers or 'all', not 'last'"),
        ({"heads": [0]}, "heads, rows and each require attention, for example attention='all'"),
    ],
)
def test_what_is_out_of_range_is_refused(asked: dict[str, Any], said: str) -> None:
    assert said in refusal(record(make("plain"), **asked).__enter__)


def test_rows_out_of_range_are_refused() -> None:
    model = make("plain")
    with record(model, attention=[0], rows=[17]):
        assert "has no token 17; it has 17" in refusal(model, images(model))


def test_a_tape_says_what_it_holds() -> None:
    model = make("plain")
    with torch.no_grad(), record(model, attention=[1]) as tape:
        said = refusal(tape.attention.__getitem__, 1)
        assert said.endswith("it holds nothing: the model was not called")
        model(images(model))
    assert torch.equal(tape.attention[-2], tape.attention[1])
    assert refusal(tape.attention.__getitem__, 0).endswith("it holds those of 1")
    assert refusal(tape.attention.__getitem__, -1).endswith("it holds those of 1")


def test_a_model_without_attention_says_what_is_possible() -> None:
    model = make("BiT-R50x1@32,stages=1-1,width=32,classes=3")
    said = refusal(record(model, attention="all").__enter__)
    assert said.endswith("has no attention to record; its blocks' outputs can be: tokens='all'")
    with torch.no_grad(), record(model, tokens="all") as tape:
        model(images(model))
    assert [tuple(t.shape) for t in tape.tokens.values()] == [(2, 64, 128), (2, 16, 256)]
