"""Texts to token IDs, by the `tokenizer.json` that stands beside the weights."""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vitrail.config import InputError
from vitrail.models.text.text_tower import TextSpec
from vitrail.text import printable
from vitrail.weights.formats.conventions import section

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TOKENIZER, SETTINGS = "tokenizer.json", "tokenizer_config.json"
_LARGEST = 128 << 20
"""Most bytes of a tokenizer.json; Gemma's takes 34 million."""
_PUNCTUATION = str.maketrans("", "", string.punctuation)


class TextTokenizer:
    """Encode texts to the token IDs that a text tower was trained with."""

    def __init__(
        self, tokenizer: Tokenizer, spec: TextSpec, *, pad: int, clean: Callable[[str], str] = str
    ) -> None:
        self.tokenizer, self.spec, self.pad, self.clean = tokenizer, spec, pad, clean

    def encode(self, texts: Sequence[str]) -> Tensor:
        """Encode texts to IDs (texts, tokens), padded at the end; a longer text is refused.

        Where only a text's end-of-text token is read, they are padded to the longest of them.
        """
        spec, rows = self.spec, list[list[int]]()
        for text in texts:
            ids = self.tokenizer.encode(self.clean(text)).ids
            if len(ids) > spec.context:
                raise InputError(
                    f"the text has {len(ids)} tokens, the model takes at most {spec.context}: "
                    f"{_brief(text)}; shorten it"
                )
            if ids and max(ids) >= spec.vocabulary:
                raise InputError(
                    f"{TOKENIZER} gives the token ID {max(ids)}, the model knows "
                    f"{spec.vocabulary:,}: it belongs to another model"
                )
            if spec.pool == "end" and (not ids or (spec.end is not None and spec.end not in ids)):
                raise InputError(
                    f"{TOKENIZER} puts no end-of-text token {spec.end} at the end of "
                    f"{_brief(text)}: it belongs to another model"
                )
            rows.append(ids)
        length = max(map(len, rows)) if spec.pool == "end" else spec.context
        return torch.tensor([ids + [self.pad] * (length - len(ids)) for ids in rows])


def _brief(text: str) -> str:
    return repr(printable(text if len(text) <= 40 else f"{text[:40]}…"))


def load_tokenizer(
    path: Path | None,
    spec: TextSpec,
    *,
    settings: Mapping[str, Any],
    config: Mapping[str, Any],
    source: str,
) -> TextTokenizer:
    """Load a tokenizer.json; `settings` and `config` are the JSON files beside it.

    They say how texts are cleaned first and what fills up the rest of a text's positions.
    """
    if path is None or not path.is_file():
        raise InputError(
            f"{source} has no {TOKENIZER}; put the one that was published with it beside the "
            "weights, or save it with transformers' tokenizer.save_pretrained(FOLDER)"
        )
    if path.stat().st_size > _LARGEST:
        raise InputError(f"{path}: too large for a tokenizer ({path.stat().st_size:,} bytes)")
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise InputError("text needs another package: pip install 'vitrail[text]'") from None
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises Exception itself
        said = " ".join(str(error).split())
        raise InputError(f"{path} is not a tokenizer: {said[:200]}") from None
    # A text's end-of-text token never sees what follows it, so any ID but the largest will do.
    pad = 0 if spec.pool == "end" else _find_pad(tokenizer, settings)
    if pad is None:
        raise InputError(f"{path}: neither it nor {SETTINGS} says the padding token (pad_token)")
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return TextTokenizer(tokenizer, spec, pad=pad, clean=_choose_cleaning(settings, config))


def _find_pad(tokenizer: Tokenizer, settings: Mapping[str, Any]) -> int | None:
    token = settings.get("pad_token")
    name = token.get("content") if isinstance(token, Mapping) else token
    if isinstance(name, str) and (found := tokenizer.token_to_id(name)) is not None:
        return found
    if tokenizer.padding is not None:
        return int(tokenizer.padding["pad_id"])
    return tokenizer.token_to_id("<pad>")


def _choose_cleaning(
    settings: Mapping[str, Any], config: Mapping[str, Any]
) -> Callable[[str], str]:
    """Choose what the source does to a text before its tokenizer.json does the rest."""
    text = section(section(config, "model_cfg") or config, "text_cfg")
    kind = str(settings.get("tokenizer_class", ""))
    if section(text, "tokenizer_kwargs").get("clean") == "canonicalize":
        return canonicalize
    if kind.startswith("SiglipTokenizer"):
        return canonicalize
    second = "siglip2" in str(config.get("model_type", "")) or kind.startswith("Siglip2")
    return str.lower if second or settings.get("do_lower_case") else str


def canonicalize(text: str) -> str:
    """Lower-case a text and take its punctuation and repeated spaces out, as SigLIP does."""
    return " ".join(text.lower().translate(_PUNCTUATION).split())
