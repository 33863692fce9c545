"""Attention for inference: the usual values, by batched products where they suit."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

from tests.predictors import make
from vitrail.models.layers.self_attention import AttentionMix
from vitrail.predictor import attention_products
from vitrail.predictor.attention_products import AttentionProducts
from vitrail.predictor.fused import fuse


@pytest.mark.parametrize(
    ("lines", "heads", "tokens", "size"), [(3, 2, 50, 16), (2, 3, 61, 16), (1, 1, 1025, 4)]
)
@pytest.mark.parametrize("most", [2**21, 50 * 50 * 4 + 1])
def test_attention_by_products_is_the_usual(
    monkeypatch: pytest.MonkeyPatch, lines: int, heads: int, tokens: int, size: int, most: int
) -> None:
    monkeypatch.setattr(attention_products, "_BYTES", most)
    monkeypatch.setattr(attention_products, "_LEAST_ROUNDED", 1)
    monkeypatch.setattr(attention_products, "has_products", lambda: True)
    # On other processors the switch might round; their own products are as good here.
    monkeypatch.setattr(attention_products, "products_by_onednn", nullcontext)
    parts = torch.randn(lines, tokens, 3, heads, size).unbind(2)
    query, key, value = (part.transpose(1, 2) for part in parts)
    exact = torch.nn.functional.scaled_dot_product_attention(
        query.double(), key.double(), value.double()
    )
    attention = AttentionProducts(AttentionMix())
    for _ in range(2):  # the second time in the memory of the first
        assert torch.allclose(attention(query, key, value, None).double(), exact, atol=1e-5)
    rounded = attention(query.bfloat16(), key.bfloat16(), value.bfloat16(), None)
    assert rounded.dtype == torch.bfloat16
    assert float((rounded.double() - exact).norm() / exact.norm()) < 0.02


def test_attention_takes_products_where_they_suit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_products, "has_products", lambda: True)
    monkeypatch.setattr(attention_products, "products_by_onednn", nullcontext)
    seen: list[int] = []

    def attend(query: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        seen.append(query.shape[2])
        return query

    monkeypatch.setattr(attention_products, "_attend", attend)
    attention = AttentionProducts(AttentionMix())
    for tokens in (47, 48, 1024, 1025):
        x = torch.randn(1, 1, tokens, 4)
        attention(x, x, x, None)
        attention(x, x, x, torch.zeros(1, 1, tokens, tokens))
        attention(x.requires_grad_(), x, x, None)
    assert seen == [48, 1024]
    for tokens in (255, 256):
        x = torch.randn(1, 1, tokens, 4).bfloat16()
        attention(x, x, x, None)
    assert seen == [48, 1024, 256]
    model = make("ViT/8@56,depth=2,width=32,heads=2,mlp=64,classes=7").model.eval()
    with torch.inference_mode():
        fuse(model)(torch.randn(1, 3, 56, 56))
    assert seen == [48, 1024, 256, 50]  # the last block is for the class token alone
