"""Batched float32 products by oneDNN, for processors where MKL's are slow.

torch has them behind a switch that allows bfloat16 inside: its products are then oneDNN's, which
rounds only on processors that have tiles for it (AMX). On AMD's they stay exact float32 and take a
third of MKL's time. That they are exact is tried before the switch is used.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from vitrail.machine import prefers_onednn

_SIDE = 64
_lock = threading.Lock()
_inside = 0
"""How many blocks of `products_by_onednn` are running, in all threads."""
_before = ""


@contextmanager
def products_by_onednn() -> Iterator[None]:
    """Let oneDNN multiply batches of matrices inside the block, in float32 where `has_products`.

    The switch is the whole process's: other threads' products are oneDNN's meanwhile, too.
    """
    global _inside, _before
    backend: Any = torch.backends.mkldnn
    settings = backend.matmul
    with _lock:
        if not _inside:
            _before, settings.fp32_precision = settings.fp32_precision, "bf16"
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                settings.fp32_precision = _before


@functools.cache
def has_products() -> bool:
    """Tell whether oneDNN's batched products are faster here, and exact."""
    if not (prefers_onednn() and torch.backends.mkldnn.is_available()):
        return False
    fine = torch.full((2, _SIDE, _SIDE), 1 + 2**-20)  # bfloat16 would round it to 1
    try:
        with torch.no_grad(), products_by_onednn():
            return torch.equal(fine @ torch.eye(_SIDE).expand_as(fine), fine)
    except (AttributeError, RuntimeError):  # another torch, or flags that may not be changed
        return False
