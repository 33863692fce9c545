"""A real ViT-Ti/16 on photographs: the paper's findings of section 4.5, where the weights are."""

from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.inspection.seen_part import seen_part
from tests.material import PETS, REAL_WEIGHTS
from vitrail.data.decoding.decode import decode
from vitrail.data.transforms.apply import eval_image, normalize
from vitrail.data.transforms.preprocess import Preprocess
from vitrail.inspection.attention import Method, attention_masks
from vitrail.inspection.distance import attention_distance
from vitrail.inspection.embeddings import position_similarity
from vitrail.inspection.overlay import place_mask
from vitrail.inspection.token_features import token_norms
from vitrail.plotting.tiles import stretch
from vitrail.weights.load import load
from vitrail.weights.loaded import LoadedModel

WEIGHTS = REAL_WEIGHTS
IMAGES = PETS / "test"
pytestmark = pytest.mark.skipif(
    not (WEIGHTS.exists() and IMAGES.exists()), reason=f"needs {WEIGHTS} and {IMAGES}"
)

ANIMALS = {  # by the image's number: top, bottom, left and right of the animal, as parts of it
    74: (0.22, 0.88, 0.32, 0.82),
    148: (0.10, 1.00, 0.23, 0.53),
    222: (0.33, 0.78, 0.12, 0.65),
}


@cache
def real() -> LoadedModel:
    return load(str(WEIGHTS))


def preprocess() -> Preprocess:
    found = real().preprocess
    assert found is not None
    return found


def contents(*numbers: int) -> list[bytes]:
    files = sorted(IMAGES.glob("*/*.jpg"))
    return [files[number].read_bytes() for number in numbers]


def inputs(*numbers: int) -> Tensor:
    pixels = np.stack([eval_image(each, preprocess()) for each in contents(*numbers)])
    return normalize(torch.from_numpy(pixels), preprocess())


@pytest.mark.parametrize("method", ["rollout", "gradient"])
def test_masks_land_on_the_animal(method: Method) -> None:
    masks = attention_masks(real().model, inputs(*ANIMALS), method=method).values
    for mask, content, box in zip(masks, contents(*ANIMALS), ANIMALS.values(), strict=True):
        height, width = decode(content).shape[:2]
        placed = place_mask(stretch(mask), height, width, preprocess())
        animal, seen = np.zeros((2, height, width), bool)
        top, bottom, left, right = np.multiply(box, (height, height, width, width)).astype(int)
        animal[top:bottom, left:right] = True
        seen_part(height, width, preprocess()).cut(seen)[:] = True
        assert placed[animal & seen].mean() > 1.5 * placed[~animal & seen].mean()


def test_early_layers_have_local_and_global_heads_and_late_ones_global_ones() -> None:
    pixels = attention_distance(real().model, [inputs(*range(0, 370, 46))]).pixels
    assert pixels[:3].min() < 30  # two patches; the mean over the whole grid is 117
    assert pixels[:3].max() > 70
    assert pixels[-3:].min() > 100


def test_position_embeddings_know_rows_and_columns() -> None:
    tiles = position_similarity(real().model).tiles
    far = np.abs(np.subtract.outer(np.arange(14), np.arange(14))) > 3
    for row, column in [(2, 3), (7, 7), (11, 5)]:
        tile = tiles[row, column]
        elsewhere = tile[np.ix_(far[row], far[column])].mean()
        assert tile[row, far[column]].mean() > elsewhere + 0.1  # the same row, but far away
        assert tile[far[row], column].mean() > elsewhere + 0.1


def test_outlier_tokens_are_found_where_the_background_is() -> None:
    found = token_norms(real().model, inputs(0, 74, 148)).outliers()
    assert found[:, [0, 0, -1, -1], [0, -1, 0, -1]].mean() > 0.7  # its corners, mostly
    assert found.mean() < 0.05
