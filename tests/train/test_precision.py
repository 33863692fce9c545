"""Which type products are computed in."""

import pytest
import torch

from vitrail.train import precision
from vitrail.train.precision import autocast_type

CPU = torch.device("cpu")


def test_what_is_asked_for_is_taken() -> None:
    assert autocast_type("float32", CPU) is None
    assert autocast_type("bfloat16", CPU) == torch.bfloat16


@pytest.mark.parametrize("has", [False, True])
def test_auto_takes_bfloat16_where_there_is_hardware_for_it(
    monkeypatch: pytest.MonkeyPatch, has: bool
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: has)
    assert autocast_type("auto", CPU) == (torch.bfloat16 if has else None)
    assert autocast_type("auto", torch.device("mps")) is None
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: has)
    assert autocast_type("auto", torch.device("cuda")) == (torch.bfloat16 if has else None)


def test_a_torch_that_does_not_tell_is_taken_to_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(precision.torch.cpu, "_is_amx_tile_supported")
    assert autocast_type("auto", CPU) is None
