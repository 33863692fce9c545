"""Muon against singular values, torch's own in bfloat16, AdamW, and a stopped run."""

from copy import deepcopy

import pytest
import torch
from torch import nn

from vitrail.models import ViT, build, parse
from vitrail.models.pretraining.masked import MaskedAutoencoder, MaskedViT
from vitrail.models.pretraining.mim import DecoderConfig, encoder_spec
from vitrail.training.optimization import muon
from vitrail.training.optimization.muon import Muon, orthogonalize
from vitrail.training.optimization.optim import OptimConfig, make_optimizer

NAME = "ViT/8@16,depth=2,width=12,heads=3,mlp=20,classes=5"
CONFIG = OptimConfig(kind="muon", lr=0.1, momentum=0.95, nesterov=True, weight_decay=0.2)


def make(options: str = "") -> ViT:
    model = build(NAME + options)
    assert isinstance(model, ViT)
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    return model


def set_gradients(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)


def make_muon(parameters: list[nn.Parameter], stack: int, *, nesterov: bool) -> Muon:
    groups = [{"params": parameters, "lr": 0.1, "weight_decay": 0.2, "stack": stack}]
    return Muon(groups, momentum=0.9, nesterov=nesterov, betas=(0.8, 0.95), eps=1e-6, fused=True)


@pytest.mark.parametrize("shape", [(8, 8), (5, 12), (12, 5), (2, 3, 7)])
def test_singular_values_go_through_the_polynomial(shape: tuple[int, ...]) -> None:
    matrix = torch.randn(shape, dtype=torch.float64)
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    values = values / values.norm(dim=-1, keepdim=True)
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    torch.testing.assert_close(orthogonalize(matrix), left * values[..., None, :] @ right)


def test_the_result_is_near_the_polar_factor() -> None:
    matrix = torch.randn(40, 64, dtype=torch.float64)
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    found = orthogonalize(matrix)
    values = torch.linalg.svdvals(found)
    assert 0.65 < values.min() < values.max() < 1.25
    polar = left @ right
    cosine = (found * polar).sum() / found.norm() / polar.norm()
    assert cosine > 0.98
    assert orthogonalize(torch.zeros(3, 4)).abs().sum() == 0


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("shape", [(6, 6), (4, 10), (10, 4)])
def test_matrices_move_as_with_torchs_muon(shape: tuple[int, int], nesterov: bool) -> None:
    ours = nn.Parameter(torch.randn(shape))
    theirs = nn.Parameter(ours.detach().clone())
    optimizers = (
        make_muon([ours], 1, nesterov=nesterov),
        torch.optim.Muon(
            [theirs],
            lr=0.1,
            weight_decay=0.2,
            momentum=0.9,
            nesterov=nesterov,
            adjust_lr_fn="match_rms_adamw",
        ),
    )
    for _ in range(3):
        ours.grad = torch.randn(shape)
        theirs.grad = ours.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    # Theirs is in bfloat16: 8 bits, over 5 iterations, of updates of 0.02 * sqrt(10).
    torch.testing.assert_close(ours, theirs, atol=5e-3, rtol=0)


def test_stacked_matrices_move_each_by_itself() -> None:
    whole = nn.Parameter(torch.randn(12, 5, dtype=torch.float64))
    parts = [nn.Parameter(part.clone()) for part in whole.detach().chunk(3)]
    whole.grad = torch.randn_like(whole)
    for part, gradient in zip(parts, whole.grad.chunk(3), strict=True):
        part.grad = gradient * 1000  # the size of a gradient does not matter
    make_muon([whole], 3, nesterov=True).step()
    make_muon(parts, 1, nesterov=True).step()
    torch.testing.assert_close(whole.detach(), torch.cat([part.detach() for part in parts]))


def test_everything_else_moves_as_with_adamw() -> None:
    ours = [nn.Parameter(torch.randn(shape)) for shape in ((3,), (2, 3, 4))]
    theirs = [nn.Parameter(parameter.detach().clone()) for parameter in ours]
    optimizers = (
        make_muon(ours, 0, nesterov=True),
        torch.optim.AdamW(theirs, 0.1, (0.8, 0.95), 1e-6, 0.2, fused=True),
    )
    for _ in range(3):
        for one, other in zip(ours, theirs, strict=True):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one, other)


def test_the_matrices_of_a_model_are_its_blocks() -> None:
    model = make(",activation=swiglu,pool=map,position=learned-2d,representation=7,qk_norm=true")
    optimizer = make_optimizer(model, CONFIG)
    names = {parameter: name for name, parameter in model.named_parameters()}
    stacks = {
        names[parameter]: group["stack"]
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    assert stacks.keys() == set(names.values())
    parts = {"attention.qkv": 3, "attention.output": 1, "mlp.hidden": 2, "mlp.output": 1}
    expected = {
        f"blocks.{block}.{name}.weight": stack for block in (0, 1) for name, stack in parts.items()
    }
    assert {name: stack for name, stack in stacks.items() if stack} == expected


def test_filters_of_a_stem_move_as_matrices() -> None:
    model = build("Hybrid/1@32,stages=1-1,stem_width=32,depth=1,width=12,heads=3,mlp=20,classes=5")
    optimizer = make_optimizer(model, CONFIG)
    names = {parameter: name for name, parameter in model.named_parameters()}
    found = {
        names[parameter]
        for group in optimizer.param_groups
        for parameter in group["params"]
        if group["stack"] and parameter.ndim == 4
    }
    convolutions = ("conv1", "conv2", "conv3", "shortcut.0")
    assert found == {f"stem.blocks.{n}.{conv}.weight" for n in (0, 1) for conv in convolutions}
    filters = nn.Parameter(torch.randn(6, 4, 3, 3, dtype=torch.float64))
    matrix = nn.Parameter(filters.detach().flatten(1))
    filters.grad = torch.randn_like(filters)
    matrix.grad = filters.grad.flatten(1)
    for parameter in (filters, matrix):
        make_muon([parameter], 1, nesterov=True).step()
    torch.testing.assert_close(filters.detach().flatten(1), matrix.detach())


def test_a_stopped_run_continues() -> None:
    one = make()
    optimizer = make_optimizer(one, CONFIG)
    set_gradients(one, 1)
    optimizer.step()
    other = deepcopy(one)
    continued = make_optimizer(other, CONFIG)
    continued.load_state_dict(deepcopy(optimizer.state_dict()))
    for model, own in ((one, optimizer), (other, continued)):
        set_gradients(model, 2)
        own.step()
    for first, second in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(first, second)


@pytest.mark.parametrize("decoder", [0, 3])
def test_pre_training_has_matrices_in_encoder_and_decoder(decoder: int) -> None:
    spec = encoder_spec(parse(NAME))
    model = MaskedViT(ViT(spec), "color")
    if decoder:
        config = DecoderConfig(depth=decoder, width=8, heads=2)
        model = MaskedAutoencoder(ViT(spec), "pixels", config)
    groups = make_optimizer(model, CONFIG).param_groups
    found = [parameter for group in groups if group["stack"] for parameter in group["params"]]
    assert len(found) == 4 * (2 + decoder)  # qkv, output, and two of the MLP, a block
    inside = {p for name, p in model.named_parameters() if "blocks." in name and p.ndim == 2}
    assert inside == {*found}


@pytest.mark.parametrize("asked", [("cpu",), ()])
def test_a_step_that_is_held_back_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, asked: tuple[str, ...]
) -> None:
    """Whether the host is asked or, as on a GPU, the device decides: the same bytes."""
    monkeypatch.setattr(muon, "_ASKED", asked)
    model = make()
    plain = deepcopy(model)
    ours, theirs = make_optimizer(model, CONFIG), make_optimizer(plain, CONFIG)
    for seed in range(3):
        set_gradients(model, seed)
        ours.found_inf = torch.zeros(())  # pyright: ignore[reportAttributeAccessIssue]
        ours.step()
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad.fill_(torch.nan)
        ours.found_inf = torch.ones(())  # pyright: ignore[reportAttributeAccessIssue]
        ours.step()
        set_gradients(plain, seed)
        theirs.step()
        for one, other in zip(model.parameters(), plain.parameters(), strict=True):
            assert torch.equal(one, other)
            assert ours.state[one].keys() == theirs.state[other].keys()
            assert all(
                torch.equal(ours.state[one][key], each) for key, each in theirs.state[other].items()
            )
