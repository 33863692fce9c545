"""Figure 12: the largest batch is the largest that fits."""

import pytest

from vitrail.models.cost.total import cost_of
from vitrail.models.cost.training_cost import training_cost
from vitrail.models.names import parse
from vitrail.studies.paper.figure12 import MEMORY, largest_batch


@pytest.mark.parametrize("name", ["ViT-B/16@64", "BiT-R50x1@64", "R50+ViT-B/16@64"])
def test_one_image_more_does_not_fit(name: str) -> None:
    spec = parse(name)
    state, batch = 16 * cost_of(spec).parameters, largest_batch(spec)
    needed = [
        state + training_cost(spec, batch=count).activation_bytes for count in (batch, batch + 1)
    ]
    assert needed[0] <= MEMORY < needed[1]
