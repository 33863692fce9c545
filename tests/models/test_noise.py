"""Keyed dropout and stochastic depth: a sample's noise is its own, whatever surrounds it."""

from collections.abc import Iterator
from itertools import islice

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointError

from vitrail.models import ViT, build
from vitrail.models.layers.self_attention import SelfAttention
from vitrail.models.noise import Dropout, StochasticDepth, draw_kept, keyed_noise

NOISY = "depth=2,width=12,heads=3,mlp=20,dropout=0.2,attention_dropout=0.3,stochastic_depth=0.5"
GAMMA = 0x9E3779B97F4A7C15
KEYS = torch.tensor([5, -7, 2**62, 11, 0, 1])


def make(name: str) -> ViT:
    model = build(f"{name},{NOISY},classes=4").double()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    assert isinstance(model, ViT)
    return model


def run(model: nn.Module, x: Tensor, keys: Tensor) -> list[Tensor]:
    """Give the logits, and the gradient of their sum's square."""
    model.zero_grad()
    with keyed_noise(model, keys):
        logits = model(x)
        logits.square().sum().backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return [logits.detach(), *(gradient.clone() for gradient in gradients)]


def split_mix(seed: int) -> Iterator[int]:
    """SplitMix64 as its authors write it, on Python's integers."""
    modulus = 2**64
    while True:
        seed = (seed + GAMMA) % modulus
        z = (seed ^ seed >> 30) * 0xBF58476D1CE4E5B9 % modulus
        z = (z ^ z >> 27) * 0x94D049BB133111EB % modulus
        yield z ^ z >> 31


def test_masks_are_splitmix64() -> None:
    kept, chance = draw_kept(KEYS, 10, 0.3)
    assert chance == 1 - round(0.3 * 65536) / 65536
    for key, row in zip(KEYS.tolist(), kept.tolist(), strict=True):
        start = next(split_mix((key - GAMMA) % 2**64)) * GAMMA
        words = islice(split_mix(start % 2**64), 3)
        parts = [word >> shift & 0xFFFF for word in words for shift in (0, 16, 32, 48)]
        numbers = [part - 65536 if part >= 32768 else part for part in parts]
        assert row == [number >= round(0.3 * 65536) - 32768 for number in numbers[:10]]


def test_the_reference_generator_is_the_published_one() -> None:
    stream = split_mix(1234567)
    assert [next(stream) for _ in range(2)] == [6457827717110365317, 3203168211198807973]


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_masks_have_their_rate_and_are_independent(rate: float) -> None:
    kept, chance = draw_kept(torch.arange(50), 4000, rate)
    std = (rate * (1 - rate) / kept.numel()) ** 0.5
    assert kept.double().mean().item() == pytest.approx(chance, abs=4 * std)
    assert chance == pytest.approx(1 - rate, abs=1e-5)
    correlations = torch.corrcoef(kept.double()) - torch.eye(50)
    assert correlations.abs().max() < 5.5 / 4000**0.5  # of 1225 pairs


@pytest.mark.parametrize("name", ["ViT/8@16", "AxialViT/8@16x24", "ViT/8@16,layer_scale=0.5"])
def test_batches_and_their_order_do_not_change_a_samples_noise(name: str) -> None:
    model = make(name)
    x = torch.randn(6, 3, *model.spec.image, dtype=torch.float64)
    logits, *gradients = run(model, x, KEYS)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    parts = [run(model, x[part], KEYS[part]) for part in order.split([1, 3, 2])]
    torch.testing.assert_close(torch.cat([part[0] for part in parts]), logits[order])
    for whole, *pieces in zip(gradients, *(part[1:] for part in parts), strict=True):
        torch.testing.assert_close(sum(pieces), whole)


def test_recomputation_meets_the_same_noise() -> None:
    model = make("ViT/8@16")
    x = torch.randn(6, 3, 16, 16, dtype=torch.float64)
    plain = run(model, x, KEYS)
    model.checkpointing = True
    for one, other in zip(run(model, x, KEYS), plain, strict=True):
        assert torch.equal(one, other)


def test_recomputation_without_keys_is_no_silent_mistake() -> None:
    model = make("ViT/8@16")
    model.checkpointing = True
    with keyed_noise(model, KEYS):
        logits = model(torch.randn(6, 3, 16, 16, dtype=torch.float64))
    with pytest.raises(CheckpointError):
        logits.sum().backward()


def test_keys_and_modules_have_noise_of_their_own() -> None:
    first, second = Dropout(0.5), Dropout(0.5)
    model = nn.Sequential(first, second, StochasticDepth(0.5), nn.Linear(1, 1))
    ones = torch.ones(4, 1000)
    with keyed_noise(model, torch.arange(4)):
        one, two = first(ones), second(ones)
        assert torch.equal(first(ones), one)
    with keyed_noise(model, torch.arange(1, 5)):
        assert torch.equal(first(ones)[:3], one[1:])
    flat = torch.cat([one, two]) - 1
    assert (flat @ flat.T / 1000 - torch.eye(8)).abs().max() < 5 / 1000**0.5


def test_stochastic_depth_drops_whole_samples() -> None:
    layer = StochasticDepth(0.25)
    model = nn.Sequential(layer, nn.Linear(1, 1))
    with keyed_noise(model, torch.arange(4000)):
        dropped = layer(torch.ones(4000, 3, 2))
        again = layer(torch.ones(4000, 5))
    assert dropped.unique().tolist() == [0.0, pytest.approx(4 / 3)]
    assert torch.equal(dropped.amax((1, 2)), dropped.amin((1, 2)))
    assert torch.equal(again[:, 0], dropped[:, 0, 0])
    assert dropped.mean().item() == pytest.approx(1, abs=0.04)


def test_attention_weights_are_dropped_after_the_softmax() -> None:
    attention = SelfAttention(12, 3, dropout=0.4).double()
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    with keyed_noise(attention, KEYS[:2]):
        assert attention.mix.dropout is not None
        assert attention.mix.dropout.keys is not None
        kept, chance = draw_kept(attention.mix.dropout.keys, 3 * 5 * 5, 0.4)
        found = attention(x)
    query, key, value = attention.project(x)
    weights = (query @ key.transpose(2, 3) / 2).softmax(-1) * kept.view(2, 3, 5, 5) / chance
    torch.testing.assert_close(
        found, attention.output((weights @ value).transpose(1, 2).flatten(2))
    )


def test_without_keys_dropout_is_torchs() -> None:
    x = torch.randn(3, 40)
    ours, theirs = Dropout(0.3), nn.Dropout(0.3)
    results = []
    for layer in (ours, theirs):
        torch.manual_seed(3)
        results.append(layer(x))
    assert torch.equal(*results)


def test_evaluation_has_no_noise() -> None:
    model = make("ViT/8@16").eval()
    x = torch.randn(6, 3, 16, 16, dtype=torch.float64)
    with keyed_noise(model, KEYS):
        assert torch.equal(model(x), model(x))
        keyed = model(x)
    torch.testing.assert_close(keyed, model(x))


def test_keys_end_with_the_context_even_by_an_exception() -> None:
    model = make("ViT/8@16")
    noisy = [m for m in model.modules() if isinstance(m, Dropout | StochasticDepth)]
    with keyed_noise(model, KEYS):
        assert all(module.keys is not None for module in noisy)
    assert all(module.keys is None for module in noisy)
    with pytest.raises(KeyboardInterrupt), keyed_noise(model, KEYS):
        raise KeyboardInterrupt
    assert len(noisy) == 1 + 2 * (1 + 3) + 2  # the first block's branches are never left out
    assert all(module.keys is None for module in noisy)
