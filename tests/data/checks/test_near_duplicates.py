"""Perceptual hashes: what stays the same image, what does not, and groups against brute force."""

import io

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.data.sets import rich_photo
from vitrail.data.checks.near_duplicates import NEAR, near_duplicates, perceptual_hash
from vitrail.data.decoding.decode import decode


def encode(image: Image.Image, quality: int, scale: float = 1.0) -> bytes:
    if scale != 1:
        image = image.resize((round(image.width * scale), round(image.height * scale)))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def distance(one: bytes, two: bytes) -> int:
    return (int.from_bytes(one) ^ int.from_bytes(two)).bit_count()


def test_a_hash_survives_encoding_and_not_another_image() -> None:
    for seed in range(5):
        image = rich_photo(seed)
        own = perceptual_hash(np.asarray(image))
        assert len(own) == 32
        darker = image.point(lambda value: int(value * 0.8))
        variants = [
            decode(encode(image, 40)),
            decode(encode(image, 75, 0.5)),
            decode(encode(image, 85, 1.5)),
            decode(encode(image, 90), shrink=4),
            np.asarray(darker),
            np.asarray(image.convert("L"))[..., None],
        ]
        assert all(distance(own, perceptual_hash(pixels)) <= NEAR for pixels in variants)
        assert distance(own, perceptual_hash(np.asarray(rich_photo(seed + 50)))) > 60


def test_what_shows_nothing_has_no_hash() -> None:
    assert perceptual_hash(np.full((64, 64, 3), 99, np.uint8)) == b""
    assert perceptual_hash(np.asarray(rich_photo(0))[:31]) == b""
    assert near_duplicates([b"", b""]) == near_duplicates([]) == []


@settings(max_examples=30)
@given(st.integers(0, 2**32), st.integers(0, 15))
def test_groups_are_those_of_brute_force(seed: int, most: int) -> None:
    rng = np.random.default_rng(seed)
    bits = rng.integers(0, 2, (12, 256), np.uint8)[rng.integers(0, 12, 60)]
    bits ^= (rng.random(bits.shape) < 0.03).astype(np.uint8)
    hashes = [row.tobytes() for row in np.packbits(bits, axis=1)]
    hashes[7] = b""
    near = {(i, j) for i in range(60) for j in range(60)
            if hashes[i] and hashes[j] and distance(hashes[i], hashes[j]) <= most}  # fmt: skip
    wanted, left = [], set(range(60)) - {7}
    while left:
        group, edge = set(), {min(left)}
        while edge:
            group |= edge
            edge = {j for i in edge for j in left if (i, j) in near} - group
        left -= group
        if len(group) > 1:
            wanted.append(sorted(group))
    assert near_duplicates(hashes, most) == sorted(wanted)
