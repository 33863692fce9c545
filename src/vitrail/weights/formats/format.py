"""What another project's format has to say: how to recognize it, its model's spec, its table."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import isqrt
from typing import Any

from torch import Tensor

from vitrail.config import InputError
from vitrail.models.spec import Spec
from vitrail.weights.formats.keymap import Shape, Table

Shapes = Mapping[str, Shape]
"""The name and shape of every tensor in a file; read before any tensor is."""


@dataclass(frozen=True)
class FileFacts:
    """What is known of a file beside its tensors."""

    config: Mapping[str, Any] = field(default_factory=dict)
    """Its config.json; empty where there is none."""
    named: Spec | None = None
    """The model that a person named."""
    said: frozenset[str] = frozenset()
    """The fields of the named model that its name says."""
    notes: list[str] = field(default_factory=list)
    """What was taken from elsewhere than the file, for the weights' provenance."""

    def told(self, name: str, usual: Any) -> Any:
        """Return a field that the file leaves open: as the name says, else the project's usual."""
        if name not in self.said:
            return usual
        value = getattr(self.named, name)
        if value != usual:
            self.notes.append(f"{name}={value}, as named; the file does not say it")
        return value

    def with_config(self, config: Mapping[str, Any]) -> FileFacts:
        """Return the same with another config."""
        return replace(self, config=config)


@dataclass(frozen=True)
class Format:
    """One project's names and shapes for the models that it shares with us."""

    name: str
    recognizes: Callable[[Shapes], bool]
    """Whether a file with these tensors is in this format."""
    infer: Callable[[Shapes, FileFacts], Spec]
    """Read the spec from the shapes and what else is known of the file.

    A grid that nothing says is square. Any other number that no tensor shows is the project's own,
    the config's or the named model's; where none of them says it, the file is refused."""
    table: Callable[[Spec], Table]
    """List our parameters and the tensors that they are made of; refuse a spec that the format
    can't express with an InputError that says which option."""
    left_out: Callable[[str], str | None] = lambda _: None
    """Why a tensor that the table does not name may be ignored, or None if it may not."""
    normalize: Callable[[Mapping[str, Tensor]], dict[str, Tensor]] = dict
    """Bring a file's other spellings and stackings to the one that the table names.

    It is called before the three above, also with tensors on the meta device."""
    denormalize: Callable[[Mapping[str, Tensor], Spec], dict[str, Tensor]] = lambda tensors, spec: (
        dict(tensors)
    )
    """Bring what the table gives to what the project's files hold, after writing."""


def count_layers(shapes: Shapes, pattern: str) -> int:
    """Count layers by the numbers that a pattern's group finds in the names."""
    return 1 + max(int(found[1]) for key in shapes if (found := re.match(pattern, key)))


def count_stages(shapes: Shapes, pattern: str) -> tuple[int, ...]:
    """Count blocks a stage by the two numbers, stage and block, that a pattern finds."""
    found = [match for key in shapes if (match := re.fullmatch(pattern, key))]
    counts = Counter(int(match[1]) for match in found)
    return tuple(counts[stage] for stage in sorted(counts))


def blocks_of(stages: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Name each block of a ResNet by stage and place, in our running order."""
    for stage, blocks in enumerate(stages):
        yield from ((stage, block) for block in range(blocks))


def is_square(number: int) -> bool:
    """Say whether a number of patches fills a square grid."""
    return isqrt(number) ** 2 == number


def square_side(number: int) -> int:
    """Give the side of a square grid; another number needs the config or the model's name."""
    if not is_square(number):
        raise InputError(f"{number} patches fill no square grid: name the model, with its size")
    return isqrt(number)
