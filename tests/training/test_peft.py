"""What is trained, counted in closed form; LoRA against dense matrices, and merged away."""

import pytest
import torch
from torch import Tensor, nn

from vitrail.config import InputError, from_dict
from vitrail.models import ViT, build
from vitrail.models.layers.linear import Linear
from vitrail.training.peft import LowRankLinear, TuneConfig, adapt, merge_lora

WIDTH, MLP, DEPTH, CLASSES = 12, 20, 3, 5
NAME = f"ViT/8@16,depth={DEPTH},width={WIDTH},heads=3,mlp={MLP},classes={CLASSES}"
HEAD = CLASSES * (WIDTH + 1)


def make(options: str = "") -> ViT:
    model = build(NAME + options)
    nn.init.normal_(model.head.output.weight)  # pyright: ignore
    assert isinstance(model, ViT)
    return model


def trained(model: nn.Module) -> dict[str, Tensor]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in trained(model).values())


def disturb(model: nn.Module) -> None:
    """Give the updates values, as training does."""
    for module in model.modules():
        if isinstance(module, LowRankLinear):
            nn.init.normal_(module.up, std=0.3)


def test_all_and_head() -> None:
    model = make()
    adapt(model, TuneConfig())
    assert count(model) == sum(p.numel() for p in model.parameters())
    adapt(model, TuneConfig(mode="head"))
    assert trained(model).keys() == {"head.output.weight", "head.output.bias"}
    assert count(model) == HEAD


@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_last_blocks_and_what_follows(blocks: int) -> None:
    model = make()
    adapt(model, TuneConfig(mode="last", blocks=blocks))
    dense = 4 * WIDTH * WIDTH + 2 * WIDTH * MLP
    block = dense + 4 * WIDTH + (MLP + WIDTH) + 4 * WIDTH  # biases, norms
    assert count(model) == blocks * block + 2 * WIDTH + HEAD
    rooms = {name.split(".")[0] for name in trained(model)}
    assert rooms == {"blocks", "norm", "head"}


@pytest.mark.parametrize("what", ["last", "head"])
def test_gradients_stop_where_training_does(what: str) -> None:
    model = make()
    adapt(model, from_dict(TuneConfig, {"mode": what}))
    model(torch.randn(2, 3, 16, 16)).square().sum().backward()
    with_gradient = {name for name, p in model.named_parameters() if p.grad is not None}
    assert with_gradient == trained(model).keys()


def test_lora_counts() -> None:
    everything = "query", "key", "value", "attention-output", "mlp-hidden", "mlp-output"
    model = make()
    adapt(model, TuneConfig(mode="lora", rank=2, targets=("query", "value")))
    assert count(model) == DEPTH * 2 * 2 * (WIDTH + WIDTH) + HEAD
    model = make()
    adapt(model, TuneConfig(mode="lora", rank=4, targets=everything))
    assert count(model) == DEPTH * 4 * (4 * 2 * WIDTH + 2 * (WIDTH + MLP)) + HEAD
    gated = make(",activation=swiglu")
    adapt(gated, TuneConfig(mode="lora", rank=1, targets=("mlp-hidden",)))
    assert count(gated) == DEPTH * 2 * (WIDTH + MLP) + HEAD


def test_the_factors_of_lora_do_not_decay() -> None:
    model = make()
    adapt(model, TuneConfig(mode="lora"))
    groups = model.parameter_groups(weight_decay=0.1)
    decays = {name: group["weight_decay"] for group in groups for name in group["names"]}
    assert {decays[name] for name in trained(model) if name.endswith((".down", ".up"))} == {0.0}
    assert decays["head.output.weight"] == 0.1


def test_lora_starts_as_the_model_and_trains_its_updates_only() -> None:
    model = make()
    x = torch.randn(2, 3, 16, 16)
    names = set(model.state_dict())
    before = model(x)
    adapt(model, TuneConfig(mode="lora", targets=("query", "mlp-output")))
    after = model(x)
    assert torch.equal(after, before)
    assert names < set(model.state_dict())
    after.square().sum().backward()
    for name, parameter in model.named_parameters():
        meant = name.startswith("head.") or name.endswith((".up", ".down"))
        assert (parameter.grad is not None) == meant, name
        if name.endswith(".up"):  # down's is 0 as long as up is
            assert parameter.grad is not None
            assert parameter.grad.abs().sum() > 0


def test_an_update_is_a_dense_matrix_of_low_rank() -> None:
    plain = nn.Linear(6, 12).double()
    layer = LowRankLinear(plain, (0, 2), stack=3, rank=2, alpha=5.0)
    nn.init.normal_(layer.up)
    update = torch.zeros(12, 6, dtype=torch.float64)
    update[:4] = 2.5 * layer.up[0] @ layer.down[0]
    update[8:] = 2.5 * layer.up[1] @ layer.down[1]
    assert torch.linalg.matrix_rank(update[:4]) == 2
    x = torch.randn(3, 7, 6, dtype=torch.float64)
    expected = x @ (plain.weight + update).T + plain.bias
    torch.testing.assert_close(layer(x), expected)
    weight, bias = plain.weight.detach().clone(), plain.bias
    merged = layer.merged()
    assert type(merged) is Linear
    torch.testing.assert_close(merged.weight, weight + update)
    assert merged.bias is bias


@pytest.mark.parametrize("options", ["", ",activation=swiglu,qkv_bias=false", ",pool=map"])
def test_merging_gives_an_ordinary_model(options: str) -> None:
    model = make(options).double()
    names = set(model.state_dict())
    targets = "query", "key", "mlp-hidden", "attention-output"
    adapt(model, TuneConfig(mode="lora", rank=3, alpha=4, targets=targets))
    disturb(model)
    x = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    before = model(x)
    merge_lora(model)
    assert set(model.state_dict()) == names
    assert not any(isinstance(module, LowRankLinear) for module in model.modules())
    assert count(model) == sum(p.numel() for p in model.parameters())
    torch.testing.assert_close(model(x), before)


def test_what_cannot_be_is_refused() -> None:
    bit = build("BiT@64,stages=1-1,width=32,classes=3")
    with pytest.raises(InputError, match=r"BiT.* has no query, value for lora"):
        adapt(bit, TuneConfig(mode="lora"))
    with pytest.raises(InputError, match="has 3 blocks, not 4"):
        adapt(make(), TuneConfig(mode="last", blocks=4))
    with pytest.raises(InputError, match="no head to train"):
        adapt(build(NAME, classes=0), TuneConfig(mode="head"))
    for wrong in ({"rank": 0}, {"blocks": 0}, {"targets": []}, {"targets": ["qkv"]}):
        with pytest.raises(InputError):
            from_dict(TuneConfig, {"what": "lora", **wrong})


def test_axial_resnets_take_lora() -> None:
    model = build("BiT@64,stages=1,width=32,heads=4,classes=3")
    adapt(model, TuneConfig(mode="lora", rank=1, targets=("key",)))
    head = 3 * (model.spec.pooled + 1)
    assert count(model) == 2 * (32 + 32) + head  # rows and columns
