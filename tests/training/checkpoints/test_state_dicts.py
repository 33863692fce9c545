"""Tensors and optimizer states on disk: they come back with every bit and every type."""

import copy
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from vitrail.training.checkpoints.state_dicts import (
    flatten_state_dict,
    load_tensors,
    save_tensors,
    unflatten_state_dict,
)

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
]


def bits(tensor: Tensor) -> tuple[torch.dtype, tuple[int, ...], bytes]:
    """Give all that tells one tensor from another, with NaN and -0 by their bits."""
    content = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return tensor.dtype, tuple(tensor.shape), bytes(content.tolist())


def same(one: Any, two: Any) -> bool:
    """Compare nested states, their types included."""
    if isinstance(one, Tensor):
        return isinstance(two, Tensor) and bits(one) == bits(two)
    if type(one) is not type(two):
        return False
    if isinstance(one, dict):
        keys = [(type(key), key) for key in one] == [(type(key), key) for key in two]
        return keys and all(same(one[key], two[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(map(same, one, two))
    return one == two


def pass_through_disk(state: Any, folder: Path) -> Any:
    tensors, plain = flatten_state_dict(state)
    save_tensors(folder / "state.safetensors", tensors)
    text = json.dumps(plain)
    return unflatten_state_dict(load_tensors(folder / "state.safetensors"), json.loads(text))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_types_and_shapes_round_trip(tmp_path: Path, dtype: torch.dtype) -> None:
    shapes = [(), (0,), (3, 0, 2), (5,), (2, 3, 4)]
    tensors = {str(shape): (torch.rand(shape) * 100).to(dtype) for shape in shapes}
    save_tensors(tmp_path / "t", tensors)
    loaded = load_tensors(tmp_path / "t")
    assert loaded.keys() == tensors.keys()
    assert all(bits(loaded[name]) == bits(tensors[name]) for name in tensors)


def test_odd_numbers_round_trip(tmp_path: Path) -> None:
    odd = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 1e-45])
    big = torch.tensor([2**63 - 1, -(2**63)])
    save_tensors(tmp_path / "t", {"odd": odd, "big": big})
    loaded = load_tensors(tmp_path / "t")
    assert bits(loaded["odd"]) == bits(odd)
    assert loaded["big"].tolist() == [2**63 - 1, -(2**63)]


def test_shared_and_strided_tensors_round_trip(tmp_path: Path) -> None:
    base = torch.arange(24.0).reshape(4, 6)
    tensors = {
        "base": base,
        "same": base,
        "turned": base.t(),
        "part": base[1:3],
        "column": base[:, 2],
        "one": base[3, 5],
        "wide": base[:1].expand(4, 6),
        "parameter": nn.Parameter(base),
    }
    expected = {name: bits(tensor.detach().clone()) for name, tensor in tensors.items()}
    save_tensors(tmp_path / "t", tensors)
    loaded = load_tensors(tmp_path / "t")
    assert {name: bits(tensor) for name, tensor in loaded.items()} == expected
    assert not any(tensor.requires_grad for tensor in loaded.values())


def test_no_tensors_round_trip(tmp_path: Path) -> None:
    save_tensors(tmp_path / "t", {})
    assert load_tensors(tmp_path / "t") == {}


def test_the_file_is_for_all_that_may_read_the_users(tmp_path: Path) -> None:
    mask = os.umask(0o027)
    try:
        save_tensors(tmp_path / "t", {"a": torch.ones(1)})
    finally:
        os.umask(mask)
    assert (tmp_path / "t").stat().st_mode & 0o777 == 0o640


def test_loaded_tensors_outlive_their_file(tmp_path: Path) -> None:
    save_tensors(tmp_path / "t", {"a": torch.ones(1 << 16)})
    loaded = load_tensors(tmp_path / "t")
    os.truncate(tmp_path / "t", 0)  # memory mapped from it would now end the process
    assert loaded["a"].sum() == 1 << 16
    loaded["a"] += 1
    assert loaded["a"].sum() == 2 << 16


class Mixed(Optimizer):
    """An optimizer that keeps all kinds of things, in groups of unlike settings."""

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        super().__init__(groups, {"lr": 0.1, "betas": (0.9, 0.999), "note": None, "warm": False})

    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Count, and keep things of every type."""
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                state["count"] = state.get("count", 0) + 1
                state["half"] = p.detach().bfloat16()
                state["history"] = [p.detach().sum(), (1, 2.0, None), {"a.b": torch.tensor(True)}]
                state["seen"] = torch.tensor(2**40)
                state["scale"] = float("inf")
                p.data.add_(p.grad, alpha=-group["lr"])


def parts(model: nn.Module) -> list[dict[str, Any]]:
    weights = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim <= 1]
    return [
        {"params": weights, "lr": 0.01},
        {"params": rest, "lr": torch.tensor(0.02), "weight_decay": 0, "name": "rest"},
    ]


OPTIMISERS: dict[str, Callable[[nn.Module], Optimizer]] = {
    "SGD": lambda model: SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True),
    "SGD without momentum": lambda model: SGD(model.parameters(), lr=1),
    "AdamW": lambda model: AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), amsgrad=True),
    "AdamW fused": lambda model: AdamW(parts(model), lr=1e-3, fused=True),
    "mixed": lambda model: Mixed(parts(model)),
}


def train(model: nn.Module, optimizer: Optimizer, *, seed: int) -> None:
    torch.manual_seed(seed)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("name", OPTIMISERS)
def test_an_optimizer_goes_on_as_if_never_stopped(tmp_path: Path, name: str) -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Linear(5, 2))
    optimizer = OPTIMISERS[name](model)
    train(model, optimizer, seed=1)
    state = optimizer.state_dict()
    loaded = pass_through_disk(state, tmp_path)
    assert same(state, loaded)

    resumed = copy.deepcopy(model)
    again = OPTIMISERS[name](resumed)
    again.load_state_dict(loaded)
    train(model, optimizer, seed=2)
    train(resumed, again, seed=2)
    assert same(list(model.parameters()), list(resumed.parameters()))
    assert same(optimizer.state_dict(), again.state_dict())


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(),
    st.sampled_from([torch.tensor(1.5), torch.arange(3), torch.zeros(0, 2).bfloat16()]),
)
KEYS = st.one_of(st.integers(), st.text(), st.booleans(), st.tuples(st.integers(), st.text()))
NESTED = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(KEYS, inner, max_size=3),
    ),
    max_leaves=12,
)


@settings(max_examples=100)
@given(state=st.dictionaries(KEYS, NESTED, max_size=4))
def test_nested_states_round_trip(state: dict[Any, Any]) -> None:
    tensors, plain = flatten_state_dict(state)
    assert same(state, unflatten_state_dict(tensors, json.loads(json.dumps(plain))))


def test_keys_that_read_alike_stay_apart() -> None:
    one, two, three = torch.zeros(1), torch.ones(1), torch.full((1,), 2.0)
    state = {0: one, "0": two, "a": {"b": two}, "a.b": three}
    tensors, plain = flatten_state_dict(state)
    assert len(tensors) == 4
    assert same(state, unflatten_state_dict(tensors, plain))


def test_names_say_where_a_tensor_belongs() -> None:
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    optimizer = SGD([weight], lr=0.1, momentum=0.9)
    optimizer.step()
    tensors, _ = flatten_state_dict(optimizer.state_dict())
    assert list(tensors) == ["state.0.momentum_buffer"]


def test_what_has_no_place_is_named() -> None:
    with pytest.raises(TypeError, match=r"param_groups\.0\.hook is of <class 'builtin_function"):
        flatten_state_dict({"param_groups": [{"hook": print}]})
