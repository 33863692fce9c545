"""What all tests share: one thread (they run side by side), a fixed seed, and what slow means."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch

torch.set_num_threads(1)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip tests that are marked slow (minutes), unless they are asked for."""
    if "VITRAIL_SLOW" in os.environ or "slow" in (config.getoption("-m") or ""):
        return
    skip = pytest.mark.skip(reason="takes minutes: VITRAIL_SLOW=1, or -m slow, runs it")
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(skip)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)
