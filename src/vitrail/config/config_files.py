"""Files of settings: YAML, TOML or JSON with keys and values at the top."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from reprlib import repr as shorten
from typing import Any

from vitrail.config.wording import InputError, either, suggest


def read_file(path: str | Path) -> dict[str, Any]:
    """Read the mapping that a .yaml, .yml, .toml or .json file holds."""
    path = Path(path)
    readers = {".yaml": _yaml, ".yml": _yaml, ".toml": tomllib.loads, ".json": _json}
    if path.suffix.lower() not in readers:
        raise InputError(f"{path}: expected a file that ends in {either(readers)}")
    try:
        data = readers[path.suffix.lower()](path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        there = path.parent.glob("*") if isinstance(error, FileNotFoundError) else ()
        hint = suggest(path.name, (other.name for other in there))
        raise InputError(f"{path}: {error.strerror}{hint}") from None
    except (ValueError, RecursionError) as error:  # syntax, encoding, duplicate keys, depth
        raise InputError(f"{path}: {error}") from None
    if not isinstance(data, dict):
        raise InputError(f"{path}: expected keys and values at the top, got {shorten(data)}")
    return data


def _yaml(text: str) -> Any:
    import yaml  # here, because most commands read no file

    class Loader(yaml.SafeLoader):
        def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
            node = super().compose_mapping_node(anchor)
            keys = [key.value for key, _ in node.value]
            for index, (key, _) in enumerate(node.value):
                if key.value in keys[:index]:
                    raise InputError(f"line {key.start_mark.line + 1}: duplicate key {key.value!r}")
            return node

    # YAML 1.1 takes 1e4 for text because it has no dot; YAML 1.2, and everybody, for a number.
    number = re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+0123456789"))
    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", error)
        raise InputError(f"line {mark.line + 1}: {problem}" if mark else problem) from None
    except (LookupError, AttributeError):  # what the YAML library itself trips over
        raise InputError("a value does not fit its !!tag; write it without the tag") from None


def _json(text: str) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise InputError(f"duplicate key {twice!r}")
        return found

    return json.loads(text, object_pairs_hook=unique)
