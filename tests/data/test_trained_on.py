"""The record of trained images, shortened: it may take others for known, never the reverse."""

import numpy as np

from vitrail.data.trained_on import ROOM, TrainedOn, TrainingImages, in_filter


def record(images: int, seed: int) -> TrainingImages:
    keys = np.random.default_rng(seed).integers(0, 2**63, images).astype(np.uint64) * np.uint64(2)
    nothing = np.empty(0, np.uint64)
    facts = {"data": "photos", "kind": "names", "images": images, "held_out": 0}
    return TrainingImages(**{**facts, "trained": keys, "held": nothing})


def test_a_filter_knows_all_and_its_share_of_others_is_told() -> None:
    whole = record(300_000, 0)
    fitted = TrainedOn(trainings=(whole, record(200_000, 1))).fitted()
    assert sum(each.bytes() for each in fitted.trainings) <= ROOM
    short = fitted.trainings[0]
    assert short.filtered
    assert in_filter(short.trained, whole.trained, short.images).all()
    others = np.random.default_rng(2).integers(0, 2**63, 50_000).astype(np.uint64)
    others = others * np.uint64(2) + np.uint64(1)
    share = in_filter(short.trained, others, short.images).mean()
    assert abs(share - short.false_positives()) < 0.02
