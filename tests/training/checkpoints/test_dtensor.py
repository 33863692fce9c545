"""Parameters that FSDP spreads over processes train as whole ones do."""

from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard

from vitrail.config import from_dict
from vitrail.models import Model, build
from vitrail.training.checkpoints.dtensor import gather, shard_like
from vitrail.training.optimization.ema import EMA
from vitrail.training.optimization.optim import OptimConfig, clip_gradients, make_optimizer

X = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

pytestmark = pytest.mark.usefixtures("group")


def make() -> tuple[Model, Model]:
    """Make a model, and the same one sharded."""
    plain = build("ViT/8@16,depth=2,width=12,heads=3,mlp=20,classes=5").double()
    nn.init.normal_(plain.get_parameter("head.output.weight"))
    sharded = deepcopy(plain)
    for block in sharded.blocks:
        fully_shard(block)
    fully_shard(sharded)
    return plain, sharded


def weights(model: Model) -> dict[str, Tensor]:
    return {name: gather(p.detach()) for name, p in model.named_parameters()}


@pytest.mark.parametrize("kind", ["adamw", "sgd", "muon"])
def test_clipping_and_steps(kind: str) -> None:
    models = make()
    config = from_dict(OptimConfig, {"kind": kind, "lr": 0.1, "weight_decay": 0.1})
    optimizers = [make_optimizer(model, config) for model in models]
    for _ in range(2):
        norms = []
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            model(X).square().sum().backward()
            norms.append(clip_gradients(model.parameters(), 1.0))
            optimizer.step()
        assert [type(norm) for norm in norms] == [Tensor, Tensor]
        torch.testing.assert_close(*norms)
    assert all(isinstance(parameter, DTensor) for parameter in models[1].parameters())
    whole, unsharded = map(weights, models)
    for name in whole:  # a key's bias has no gradient but rounding, which Adam blows up
        tolerance = 1e-6 if name.endswith("qkv.bias") else 1e-9
        torch.testing.assert_close(unsharded[name], whole[name], atol=tolerance, rtol=0)


def test_averages_come_and_go() -> None:
    plain, sharded = make()
    averages = [EMA(model, 0.5) for model in (plain, sharded)]
    for model, average in zip((plain, sharded), averages, strict=True):
        optimizer = make_optimizer(model, OptimConfig(kind="sgd", lr=0.1))
        model(X).square().sum().backward()
        optimizer.step()
        average.update(model, 0)
    with torch.no_grad(), averages[0].applied(plain), averages[1].applied(sharded):
        averaged = plain(X)
        torch.testing.assert_close(sharded(X), averaged, rtol=1e-5, atol=1e-5)
    # A forward pass without a backward pass leaves FSDP with unsharded weights: the averages.
    torch.testing.assert_close(sharded(X), plain(X))
    assert not torch.allclose(plain(X), averaged, atol=1e-2)


def test_what_is_spread_can_be_gathered() -> None:
    _, sharded = make()
    parameter = sharded.get_parameter("blocks.0.attention.qkv.weight")
    assert isinstance(parameter, DTensor)
    whole = torch.randn(parameter.shape)
    spread = shard_like(whole, parameter)
    assert isinstance(spread, DTensor)
    assert spread.placements == (Shard(0),)
    assert torch.equal(gather(spread), whole)
    assert shard_like(whole, whole) is whole
