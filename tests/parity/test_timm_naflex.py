"""Against timm's NaFlexVit, tiny, with random weights: images of one size, and padded batches."""

from typing import Any

import pytest
import torch

from tests.parity import peers
from tests.parity.timm_models import TINY, assert_equal, images, read
from vitrail.models import pack_images

timm = peers.load("timm")

SIZES = [(128, 128), (64, 96), (136, 72), (16, 200)]
NAMES = [
    *("naflexvit_base_patch16_gap", "naflexvit_base_patch16_map"),
    *("naflexvit_base_patch16_siglip", "naflexvit_so150m2_patch16_reg1_gap"),
    *("naflexvit_base_patch16_par_gap", "naflexvit_base_patch16_parfac_gap"),
]


def make(name: str, **more: Any) -> tuple[Any, Any]:
    arguments = {**TINY, "patch_size": 8, **more}
    theirs = peers.randomize(timm.create_model(name, **arguments), torch.float32)
    return read(name, theirs, {**arguments, "img_size": (128, 128)}), theirs


@pytest.mark.parametrize("name", NAMES)
def test_one_size(name: str) -> None:
    ours, theirs = make(name)
    with torch.no_grad():
        for size in SIZES:
            assert_equal(ours(images(size)), theirs(images(size)), 2e-5)


@pytest.mark.parametrize("name", NAMES)
def test_mixed_sizes(name: str) -> None:
    ours, theirs = make(name)
    batch = pack_images([images(size)[0] for size in SIZES], (8, 8), 300)
    names = {"patches": batch.patches, "patch_coord": batch.places, "patch_valid": batch.valid}
    with torch.no_grad():
        assert_equal(ours(batch), theirs(names), 2e-5)
