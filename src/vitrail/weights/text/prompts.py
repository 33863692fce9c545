"""Class names and prompt templates, and what they are read from."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence

from vitrail.config import InputError
from vitrail.text import expand, quoted
from vitrail.weights.class_names import imagenet_classes, imagenet_wnids

DEFAULT_TEMPLATE = "a photo of a {}."
"""CLIP's: "We found that using the prompt template 'A photo of a {label}.' to be a good default"
(arXiv 2103.00020, section 3.1.4)."""

CLIP_TEMPLATES = (
    "itap of a {}.",
    "a bad photo of the {}.",
    "a origami {}.",
    "a photo of the large {}.",
    "a {} in a video game.",
    "art of the {}.",
    "a photo of the small {}.",
)
"""The seven of its 80 that OpenAI's notebook Prompt_Engineering_for_ImageNet chose."""

NAMED = {"clip-7": CLIP_TEMPLATES}
_MOST = 1 << 20
"""Bytes of a file of names or templates; ImageNet-21k's names take 0.5 million."""

Texts = str | os.PathLike[str] | Sequence[str]
"""Texts, one per line of a file, or as text on the command line."""


def parse_classes(classes: Texts) -> tuple[str, ...]:
    """Read class names: a list, "cat,dog", or a text file with one per line."""
    if isinstance(classes, str | os.PathLike):
        lines = _read_lines(classes)
        given = os.fspath(classes).split(",") if lines is None else filter(None, lines)
    else:
        given = map(str, classes)
    names = [name.strip() for name in given]
    if not names or "" in names:
        raise InputError("--classes: expected names such as cat,dog, or a file with one per line")
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise InputError(f"--classes has {quoted(twice)} twice")
    return tuple(names)


def parse_templates(templates: Texts | None) -> tuple[str, ...]:
    """Read prompt templates: a list, one text with {}, a file with one per line, or "clip-7"."""
    if templates is None:
        return (DEFAULT_TEMPLATE,)
    if isinstance(templates, str) and templates in NAMED:
        return NAMED[templates]
    if isinstance(templates, str | os.PathLike):
        lines = _read_lines(templates)
        found = [os.fspath(templates)] if lines is None else [line for line in lines if line]
    else:
        found = list(map(str, templates))
    wrong = [each for each in found if each.count("{}") != 1]
    if wrong or not found:
        raise InputError(
            f"--templates: expected texts with one {{}} for the class, such as "
            f"'{DEFAULT_TEMPLATE}', a file of them, or {' or '.join(NAMED)}, got "
            f"{quoted([wrong[0][:80]]) if wrong else 'none'}"
        )
    return tuple(found)


def _read_lines(text: str | os.PathLike[str]) -> list[str] | None:
    """Read a file's lines, without the spaces around them; None if it names no file."""
    path = expand(os.fspath(text))
    try:
        if not path.is_file():
            return None
        if path.stat().st_size > _MOST:
            raise InputError(f"{path}: too large for a list of texts")
        return [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines()]
    except (OSError, ValueError) as error:
        if isinstance(error, UnicodeDecodeError):
            raise InputError(f"{path}: expected UTF-8 text, one per line") from None
        if isinstance(error, InputError):
            raise
        return None  # a text that no file can be named by


_DISTINCT = {
    "n02113186": "Cardigan Welsh corgi",
    "n02012849": "crane bird",
    "n03126707": "construction crane",
    "n03710637": "tights",
    "n03710721": "one-piece bathing suit",
}
"""ImageNet's classes that share WordNet's first lemma with another, but for its case."""


def spell_classes(names: Sequence[str]) -> tuple[str, ...]:
    """Write a dataset's class names as words: spaces for underscores, ImageNet's for its IDs.

    ImageNet's are the first lemmas of WordNet 3.0, each once. OpenAI's and open_clip's own list,
    with which their accuracies were measured, says most of the others in other words.
    """
    known = dict(zip(imagenet_wnids(1000) or (), imagenet_classes(1000) or (), strict=True))
    if set(names) <= known.keys():
        return tuple(_DISTINCT.get(name) or known[name].partition(",")[0] for name in names)
    return tuple(name.replace("_", " ") for name in names)
