"""The moving average of weights in closed form, and the swap into a model and back."""

import pytest
import torch
from torch import nn

from vitrail.training.optimization.ema import EMA


def fill(layer: nn.Linear, value: float) -> None:
    for parameter in layer.parameters():
        nn.init.constant_(parameter, value)


def test_constant_weights_are_approached_geometrically() -> None:
    layer = nn.Linear(3, 2)
    fill(layer, 1.0)
    average = EMA(layer, 0.9)
    fill(layer, 3.0)
    for _step in range(20):
        average.update(layer)
    assert average.state.keys() == {"weight", "bias"}
    for tensor in average.state.values():
        assert tensor.flatten().tolist() == pytest.approx([3 - 2 * 0.9**20] * tensor.numel())


def test_it_is_the_weighted_mean_of_all_weights() -> None:
    layer = nn.Linear(3, 2)
    seen = [layer.weight.detach().double().clone()]
    average = EMA(layer, 0.7)
    for _step in range(6):
        nn.init.normal_(layer.weight)
        seen.append(layer.weight.detach().double().clone())
        average.update(layer)
    shares = [0.7**6] + [0.3 * 0.7 ** (6 - i) for i in range(1, 7)]
    expected = sum(share * weight for share, weight in zip(shares, seen, strict=True))
    torch.testing.assert_close(average.state["weight"].double(), expected)


def test_it_is_float32_whatever_the_model() -> None:
    layer = nn.Linear(64, 64).bfloat16()
    fill(layer, 1.0)
    average = EMA(layer, 0.999)
    fill(layer, 2.0)
    average.update(layer)
    # One step of 0.001 is far below bfloat16's 0.0078.
    assert average.state["weight"].dtype == torch.float32
    assert average.state["weight"][0, 0].item() == pytest.approx(1.001)
    with average.applied(layer):
        assert layer.weight.dtype == torch.bfloat16
        assert layer.weight[0, 0].item() == 1.0


def test_the_weights_come_back_bit_for_bit() -> None:
    layer = nn.Linear(5, 4)
    average = EMA(layer, 0.5)
    nn.init.normal_(layer.weight)
    layer.weight.data[0, 0] = -0.0
    average.update(layer)
    own = layer.weight.detach().clone()
    place = layer.weight.data_ptr()
    with average.applied(layer):
        assert torch.equal(layer.weight, average.state["weight"])
        assert not torch.equal(layer.weight, own)
    assert torch.equal(layer.weight.view(torch.int32), own.view(torch.int32))
    with pytest.raises(KeyboardInterrupt), average.applied(layer):
        raise KeyboardInterrupt
    assert torch.equal(layer.weight.view(torch.int32), own.view(torch.int32))
    assert layer.weight.data_ptr() == place


def test_what_is_frozen_is_not_averaged() -> None:
    layer = nn.Linear(3, 2)
    layer.bias.requires_grad_(False)
    average = EMA(layer, 0.5)
    assert average.state.keys() == {"weight"}
    average.update(layer)
    with average.applied(layer):
        pass


def test_a_saved_state_continues() -> None:
    layer = nn.Linear(3, 2)
    one = EMA(layer, 0.5)
    nn.init.normal_(layer.weight)
    one.update(layer)
    other = EMA(layer, 0.5)
    other.load({name: tensor.clone() for name, tensor in one.state.items()})
    for average in (one, other):
        average.update(layer)
    assert torch.equal(one.state["weight"], other.state["weight"])
