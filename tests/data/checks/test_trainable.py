"""What can't be trained on is said in one line, with what to do."""

import numpy as np
import pytest

from vitrail.config import InputError
from vitrail.data.checks.trainable import check_trainable
from vitrail.data.dataset import ArrayDataset, select


def test_a_class_that_is_wholly_held_out_is_told_so() -> None:
    images, labels = np.zeros((5, 4, 4, 1), np.uint8), np.array([0, 0, 1, 1, 1])
    whole = ArrayDataset("photos", ("cat", "dog"), labels, images)
    train, val = select(whole, np.arange(2), "train"), select(whole, np.arange(2, 5), "val")
    with pytest.raises(InputError) as caught:
        check_trainable(train, val)
    assert str(caught.value) == (
        "class 'dog' of train has no image, but val has 3; add some, remove the class, or hold out "
        "other groups"
    )
    with pytest.raises(InputError, match="has no image; add some, or remove the class"):
        check_trainable(train)
