"""Which cases of a test run each time, and which only when slow ones are asked for."""

from collections.abc import Container, Iterable
from typing import Any

import pytest


def slow(*case: object) -> Any:
    """Make a case that is slow."""
    return pytest.param(*case, marks=pytest.mark.slow)


def slow_but(quick: Container[Any], cases: Iterable[Any]) -> list[Any]:
    """Make all cases slow but the quick ones."""
    return [case if case in quick else slow(case) for case in cases]
