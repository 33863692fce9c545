"""oneDNN's batched products: exact, and switched on only inside their block."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from vitrail.machine import ASSUMED, prefers_onednn
from vitrail.models.layers.batched_products import has_products, products_by_onednn

SWITCH: Any = getattr(torch.backends.mkldnn, "matmul", None)
pytestmark = pytest.mark.skipif(SWITCH is None, reason="this torch has no such switch")


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    has_products.cache_clear()
    yield
    has_products.cache_clear()


def test_the_switch_is_on_while_any_thread_needs_it() -> None:
    before, seen = SWITCH.fp32_precision, list[str]()
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with products_by_onednn():
            entered.set()
            leave.wait(10)

    def fail() -> None:
        with products_by_onednn():
            thread.start()
            entered.wait(10)
            seen.append(SWITCH.fp32_precision)
            raise KeyError

    thread = threading.Thread(target=other)
    with pytest.raises(KeyError):
        fail()
    seen.append(SWITCH.fp32_precision)
    leave.set()
    thread.join()
    assert seen == ["bf16", "bf16"]
    assert SWITCH.fp32_precision == before != "bf16"


def test_products_that_round_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ASSUMED, "AuthenticAMD avx512f")
    usual = torch.Tensor.__matmul__

    def rounding(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return usual(left.bfloat16(), right.bfloat16()).float()

    monkeypatch.setattr(torch.Tensor, "__matmul__", rounding)
    assert not has_products()


def test_other_processors_keep_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ASSUMED, "GenuineIntel avx512f")
    assert not has_products()


@pytest.mark.skipif(not prefers_onednn(), reason="MKL is as fast on this processor")
def test_they_are_exact_here() -> None:
    assert has_products()
    x, y = torch.randn(3, 64, 80), torch.randn(3, 80, 64)
    with products_by_onednn():
        found = x @ y
    assert float((found - x.double() @ y.double()).abs().max()) < 2e-5
