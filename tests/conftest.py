"""What all tests share: one thread (they run side by side), a fixed seed, and what slow means.

Hypothesis times no example: the machine may be busy.
"""

import gc
import os
from collections.abc import Generator, Iterator
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import hypothesis
import pytest
import torch

from tests.material import ODD_IMAGES, REAL_WEIGHTS
from tests.odd_images import make_odd_images
from tests.published import save_timm_tiny

torch.set_num_threads(1)
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip tests that are marked slow, unless they are asked for."""
    if "VITRAIL_SLOW" in os.environ or "slow" in (config.getoption("-m") or ""):
        return
    skip = pytest.mark.skip(reason="slow: make test-slow, VITRAIL_SLOW=1 or -m slow runs it")
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(skip)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage while tests are collected, nor later among the million objects made."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def _seed() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    assert count == 1, "a function did not restore torch's number of threads"


@pytest.fixture(scope="session", params=["generated", "found"])
def odd_images(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder of corrupt and odd images with its MANIFEST.tsv: ours, and the corpus."""
    if request.param == "generated":
        return make_odd_images(tmp_path_factory.mktemp("odd"))
    if not ODD_IMAGES.exists():
        pytest.skip(f"the corpus of odd images is not at {ODD_IMAGES}")
    return ODD_IMAGES


@pytest.fixture(scope="session", params=["random", "published"])
def timm_tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a ViT-Ti/16 as timm's hub folder holds it: of random weights, and the published one."""
    if request.param == "random":
        return save_timm_tiny(tmp_path_factory.mktemp("hub") / REAL_WEIGHTS.name)
    if not REAL_WEIGHTS.exists():
        pytest.skip(f"the published ViT-Ti/16 is not at {REAL_WEIGHTS}")
    return REAL_WEIGHTS
