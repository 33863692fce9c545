"""What the tests of training share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from torch import distributed


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """Be the only process of a distributed run."""
    distributed.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()
