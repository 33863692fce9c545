"""Which type products are computed in, and the scale of float16's losses beside torch's."""

import math
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vitrail.machine import ASSUMED
from vitrail.models import parse
from vitrail.training.optimization import precision
from vitrail.training.optimization.precision import LossScale, autocast_type

CPU = torch.device("cpu")


TINY, SMALL = parse("ViT/8@32,depth=1,width=64,heads=1,mlp=64"), parse("ViT-Ti/16")


def test_what_is_asked_for_is_taken() -> None:
    for spec in (TINY, SMALL):
        assert autocast_type("float32", CPU, spec) is None
        assert autocast_type("bfloat16", CPU, spec) == torch.bfloat16
        assert autocast_type("float16", CPU, spec) == torch.float16


@pytest.mark.parametrize("has", [False, True])
def test_auto_takes_bfloat16_where_it_is_faster(monkeypatch: pytest.MonkeyPatch, has: bool) -> None:
    expected = torch.bfloat16 if has else None
    monkeypatch.setenv(ASSUMED, "GenuineIntel amx_bf16" if has else "GenuineIntel")
    assert autocast_type("auto", CPU, SMALL) == expected
    assert autocast_type("auto", CPU, TINY) is None
    assert autocast_type("auto", torch.device("mps"), SMALL) is None
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: has)
    for spec in (TINY, SMALL):
        assert autocast_type("auto", torch.device("cuda"), spec) == expected


@given(st.lists(st.booleans(), max_size=14))
def test_the_scale_is_torchs(overflows: list[bool]) -> None:
    """Torch's has no smallest value, but 14 halvings do not get there."""
    ours, weight = LossScale(), torch.nn.Parameter(torch.ones(()))
    theirs = torch.amp.GradScaler("cpu", growth_interval=3)
    theirs.scale(torch.ones(()))  # it begins with the first loss
    optimizer = torch.optim.SGD([weight])
    with patch.object(precision, "_CALM", 3):
        for overflow in overflows:
            weight.grad = torch.tensor(math.inf if overflow else 8.0)
            ours.remove([weight])
            unscaled = weight.grad.item()
            weight.grad = torch.tensor(math.inf if overflow else 8.0)
            theirs.unscale_(optimizer)
            assert weight.grad.item() == unscaled
            theirs.step(optimizer)
            theirs.update()
            assert not ours.settle(torch.tensor(float(overflow)))
            assert ours.factor.item() == theirs.get_scale()
