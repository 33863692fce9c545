"""Find images that look the same: a hash that survives JPEG, resizing and light, and its groups.

The hash is the classic one of low frequencies (pHash): a gray image of 32 x 32, its cosine
transform, and for each of the 255 lowest frequencies whether it is above their median. On 740
photos, re-encoding and halving change up to 12 of the bits, another photo at least 80.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
from PIL import Image

SMALLEST = 32
"""Side of the smallest image that has a hash."""
NEAR = 24
"""Bits in which two images that look the same may differ."""
_KEPT = 16  # frequencies each way
_FLAT = 2.0  # gray levels of std below which an image shows nothing to tell it by
_BAND = 2  # bytes that two hashes must share somewhere to be compared
_PAIRS = 1 << 18  # compared at a time
_BASIS = np.cos(np.pi * np.arange(_KEPT)[:, None] * (2 * np.arange(SMALLEST) + 1) / (2 * SMALLEST))


def perceptual_hash(pixels: np.ndarray) -> bytes:
    """Hash what an image (height, width, channels; uint8) looks like: 32 bytes.

    Empty for an image that is smaller than `SMALLEST` or of one color.
    """
    if min(pixels.shape[:2]) < SMALLEST:
        return b""
    gray = Image.fromarray(pixels[..., 0] if pixels.shape[2] < 3 else pixels[..., :3]).convert("L")
    small = gray.resize((SMALLEST, SMALLEST), Image.Resampling.BILINEAR)
    values = np.asarray(small, np.float64)
    if values.std() < _FLAT:
        return b""
    waves = (_BASIS @ values @ _BASIS.T).ravel()[1:]  # without the mean: light may differ
    return np.packbits(waves > np.median(waves)).tobytes()


def near_duplicates(hashes: Sequence[bytes], most: int = NEAR) -> list[list[int]]:
    """Group the indices of images that look the same: within `most` bits of another of the group.

    Images without a hash are in no group. Only hashes that share two bytes are compared: all pairs
    within 15 bits do, and nearly all within 24.
    """
    known = [index for index, each in enumerate(hashes) if each]
    if not known:
        return []
    packed = np.frombuffer(b"".join(hashes[index] for index in known), np.uint8)
    unique, inverse = np.unique(packed.reshape(len(known), -1), axis=0, return_inverse=True)
    parent = list(range(len(unique)))

    def root(index: int) -> int:
        while parent[index] != index:
            parent[index] = index = parent[parent[index]]
        return index

    for pairs in _candidates(unique):
        apart = np.unpackbits(unique[pairs[:, 0]] ^ unique[pairs[:, 1]], axis=1).sum(1)
        for first, second in pairs[apart <= most].tolist():
            parent[root(first)] = root(second)
    groups: defaultdict[int, list[int]] = defaultdict(list)
    for index, number in zip(known, inverse.reshape(-1).tolist(), strict=True):
        groups[root(number)].append(index)
    return sorted(group for group in groups.values() if len(group) > 1)


def _candidates(hashes: np.ndarray) -> Iterator[np.ndarray]:
    """Yield pairs (n, 2) of hashes that have the same bytes in some place; some more than once."""
    for place in range(0, hashes.shape[1], _BAND):
        keys = np.ascontiguousarray(hashes[:, place : place + _BAND]).view(np.uint16)[:, 0]
        order = np.argsort(keys, kind="stable")
        starts = np.flatnonzero(np.diff(keys[order], prepend=-1))
        for group in np.split(order, starts[1:]):
            if len(group) > 1:
                first, second = np.triu_indices(len(group), 1)
                pairs = np.stack([group[first], group[second]], axis=1)
                yield from np.array_split(pairs, -(-len(pairs) // _PAIRS))
