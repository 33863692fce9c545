"""Answers that are withheld so that the others are wrong at most as often as stated.

"Selective Classification for Deep Neural Networks" (arXiv 1705.08500): an answer is given if its
confidence is above a threshold. Ten thresholds are tried that would answer a tenth, two tenths, …
and all of the held-out images. Above each, the images are a sample of those that it answers, so
that the errors among them are binomial: the test of `error rate > stated` is exact at any number of
images. Each of the ten has a tenth of `RISK`, and the one that answers most is taken. So with
probability `1 - RISK` over the held-out images, whatever the model and the data, the error rate of
the given answers is at most the stated one, on images from where the held-out ones came.
"""

from __future__ import annotations

import math

import numpy as np

from vitrail.config import InputError

RISK = 0.1
"""Probability that the held-out images mislead, so that more answers are wrong."""
_TRIED = 10


def parse_rate(value: float | str) -> float:
    """Read an error rate: 5%, 5 %, 0.05."""
    text = str(value).strip()
    try:
        rate = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        rate = math.nan
    if not 0 < rate < 1:
        raise InputError(f"--unsure {text}: expected an error rate such as 5% or 0.05")
    return rate


def find_threshold(confidence: np.ndarray, correct: np.ndarray, rate: float) -> float:
    """Find the confidence above which at most `rate` of the answers are wrong.

    inf if there is none, -inf if all answers may be given. InputError where no number of correct
    answers could show it.
    """
    images = len(confidence)
    if (1 - rate) ** images > RISK / _TRIED:
        needed = math.ceil(math.log(RISK / _TRIED) / math.log1p(-rate))
        raise InputError(
            f"--unsure {rate:.4g}: needs {needed:,} held-out images or more, but the model was "
            f"calibrated on {images:,}; give a larger rate, or more images to vitrail calibrate"
        )
    ranked = np.sort(confidence)[::-1]
    for tenths in range(_TRIED, 0, -1):
        answered = math.ceil(images * tenths / _TRIED)
        threshold = -math.inf if answered == images else float(ranked[answered])
        above = confidence > threshold  # fewer than asked for where images tie
        wrong = int((above & (correct == 0)).sum())
        if binomial_cdf(wrong, int(above.sum()), rate) <= RISK / _TRIED:
            return threshold
    return math.inf


def binomial_cdf(most: int, trials: int, probability: float) -> float:
    """Compute the probability of at most so many successes."""
    if most >= trials:
        return 1.0
    hit, miss = math.log(probability), math.log1p(-probability)
    whole = math.lgamma(trials + 1)
    terms = (
        whole - math.lgamma(k + 1) - math.lgamma(trials - k + 1) + k * hit + (trials - k) * miss
        for k in range(most + 1)
    )
    return min(math.fsum(map(math.exp, terms)), 1.0)
