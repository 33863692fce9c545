"""Token merging: against the paper's words in loops, and where nothing may change."""

import math

import pytest
import torch
from torch import Tensor

from tests.predictors import make
from tests.shelf import refusal
from vitrail.deploy.backends.token_merging import MergedViT, merge_tokens
from vitrail.machine import has_bfloat16
from vitrail.predictor.fused import fuse

SMALL = "ViT/8@32,depth=3,width=32,heads=2,mlp=64,classes=7"


def by_hand(x: Tensor, sizes: Tensor, keys: Tensor, count: int, prefix: int) -> list[list[float]]:
    """Merge one image's tokens with loops: rows of (size, values), in any order."""
    tokens = [(float(sizes[0, t, 0]), x[0, t]) for t in range(x.shape[1])]
    patches = range(prefix, len(tokens))
    left, right = list(patches)[::2], list(patches)[1::2]

    def similarity(a: int, b: int) -> float:
        return float(torch.dot(keys[0, a], keys[0, b]) / keys[0, a].norm() / keys[0, b].norm())

    best = {a: max(right, key=lambda b: similarity(a, b)) for a in left}
    ranked = sorted(left, key=lambda a: -similarity(a, best[a]))
    groups = {t: [t] for t in range(len(tokens)) if t not in ranked[:count]}
    for a in ranked[:count]:
        groups[best[a]].append(a)
    rows = []
    for members in groups.values():
        total = sum(tokens[t][0] for t in members)
        mean = sum(tokens[t][0] * tokens[t][1] for t in members) / total
        rows.append([total, *torch.as_tensor(mean).tolist()])
    return sorted(rows)


@pytest.mark.parametrize("prefix", [0, 1, 5])
@pytest.mark.parametrize("count", [0, 1, 4, 100])
def test_merging_is_the_papers(prefix: int, count: int) -> None:
    x, keys = torch.randn(1, 14 + prefix, 6), torch.randn(1, 14 + prefix, 4)
    sizes = torch.randint(1, 4, (1, 14 + prefix, 1)).float()
    found, merged = merge_tokens(x, sizes, keys, count, prefix)
    expected = by_hand(x, sizes, keys, min(count, 7), prefix)
    rows = sorted(torch.cat([merged, found], dim=-1)[0].tolist())
    assert len(rows) == 14 + prefix - min(count, 7)
    for row, other in zip(rows, expected, strict=True):
        assert row == pytest.approx(other, abs=1e-5)
    assert torch.equal(found[:, :prefix], x[:, :prefix])
    assert float(merged.sum()) == float(sizes.sum())


@pytest.mark.parametrize("pool", ["token", "gap", "token-gap"])
@pytest.mark.parametrize("ratio", [0.1, 0.5])
def test_equal_patches_merge_without_a_trace(pool: str, ratio: float) -> None:
    """Attention and the mean count a merged token as often as it has patches."""
    model = make(f"{SMALL},position=none,pool={pool}").model.eval()
    x = torch.randn(2, 3, 8, 8).repeat(1, 1, 4, 4)
    with torch.no_grad():
        assert torch.allclose(MergedViT(model, ratio)(x), model(x), atol=1e-5)


@pytest.mark.parametrize("pool", ["token", "gap", "token-gap"])
def test_a_ratio_of_zero_is_the_model(pool: str) -> None:
    model = make(f"{SMALL},pool={pool},registers=2").model.eval()
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.allclose(MergedViT(model, 0)(x), model(x), atol=1e-5)
        assert not torch.allclose(MergedViT(model, 0.2)(x), model(x), atol=1e-5)


def test_tokens_grow_fewer_by_the_ratio() -> None:
    model = make(SMALL).model.eval()
    counts: list[int] = []
    for block in model.blocks:
        block.mlp.register_forward_pre_hook(lambda module, given: counts.append(given[0].shape[1]))  # pyright: ignore
    with torch.no_grad():
        MergedViT(model, 0.2)(torch.randn(1, 3, 32, 32))
    step = math.floor(0.2 * 16)
    assert counts == [17 - step, 17 - 2 * step, 17 - 3 * step]


def test_what_can_not_be_merged() -> None:
    model = make(SMALL).model
    assert "merge must be in [0, 0.5], got 0.7" in refusal(MergedViT, model, 0.7)
    for name in ("BiT-R50x1@32,classes=7", f"{SMALL},pool=map"):
        assert "token merging needs" in refusal(MergedViT, make(name).model, 0.1)


@pytest.mark.skipif(not has_bfloat16(), reason="this CPU has no bfloat16")
def test_merging_runs_in_bfloat16() -> None:
    torch.manual_seed(0)
    model, x = make(SMALL).model.eval(), torch.randn(2, 3, 32, 32)
    exact, rounded = (
        MergedViT(fuse(model, prune=False, precision=precision), 0.1)
        for precision in ("float32", "bfloat16")
    )
    with torch.inference_mode():
        expected = exact(x)
        assert 0 < float((rounded(x) - expected).norm() / expected.norm()) < 0.05
