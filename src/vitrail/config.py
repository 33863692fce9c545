"""Typed, closed configuration: plain data in, frozen dataclasses out, and back.

What does not belong is refused, all mistakes at once. It must not know what is configured.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import re
import string
import tomllib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from fractions import Fraction
from functools import partial
from pathlib import Path
from reprlib import repr as shorten
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")
Unit = Literal["steps", "epochs", "%", "images"]
_UNITS: dict[str, Unit] = {unit.removesuffix("s"): unit for unit in get_args(Unit)}
_A_DURATION = "a duration such as '500 steps', '7 epochs', '5 %' or '1_000_000 images'"


class InputError(ValueError):
    """A mistake in what the user gave; its text is one line that says what to mend, and where."""

    def __str__(self) -> str:
        """Join the problems, one an argument, to one line whatever line breaks they quote."""
        return " ".join("; ".join(map(str, self.args)).splitlines())


def suggest(word: str, choices: Iterable[str], *, where: str = "") -> str:
    """Return "; did you mean 'x' or 'y'?" for the choices (of path `where`) near word, or ""."""
    spellings = {choice.lower(): choice for choice in choices}
    word = word.lower()
    near = [word] if word in spellings else difflib.get_close_matches(word, spellings, n=3)
    shown = [repr(_join(where, spellings[match])) for match in near]
    return f"; did you mean {_either(shown)}?" if shown else ""


@dataclasses.dataclass(frozen=True, slots=True)
class Duration:
    """A length of training in the unit its author thinks in; `steps` makes it countable."""

    amount: int | float
    unit: Unit

    def __post_init__(self) -> None:
        """Refuse what is no length, and hold whole amounts as int so that each prints one way."""
        most = 100 if self.unit == "%" else 2**53  # up to which a float holds whole numbers exactly
        if not 0 <= self.amount <= most:
            raise InputError(f"expected 0 to {most:_} {self.unit}, got {self.amount}")
        if self.amount == int(self.amount):
            object.__setattr__(self, "amount", int(self.amount))
        elif self.unit in ("steps", "images"):
            raise InputError(f"expected a whole number of {self.unit}, got {self.amount}")

    def __str__(self) -> str:
        """Print the canonical text, which `parse` reads back to an equal Duration."""
        return f"{self.amount:_} {self.unit.removesuffix('s') if self.amount == 1 else self.unit}"

    @classmethod
    def parse(cls, text: str) -> Duration:
        """Read text such as "500 steps", "0.5 epochs", "5%" or "1_000_000 images"."""
        number = text.strip().rstrip(string.ascii_letters + "%")
        word = text.strip()[len(number) :].lower().removesuffix("s")
        amount = _literal(number.strip())
        if type(amount) not in (int, float):
            raise InputError(f"expected {_A_DURATION}, got {shorten(text)}")
        if word not in _UNITS:
            examples = _either(f"'{number.strip()} {unit}'" for unit in get_args(Unit))
            raise InputError(f"{shorten(text)} has no known unit; write {examples}")
        return cls(amount, _UNITS[word])

    def steps(self, *, images: int, batch: int, total: int | None = None) -> int:
        """Return how many optimizer steps this is, at least one for any epochs above zero.

        An epoch is a pass over `images`, a step takes `batch`, a percentage is of `total` steps.
        """
        if self.unit == "%" and total is None:
            raise InputError(f"'{self}' has no total to be a part of; give steps or epochs")
        each = {"steps": Fraction(1), "epochs": Fraction(images, batch)}
        each |= {"images": Fraction(1, batch), "%": Fraction(total or 0, 100)}
        # The decimal the user wrote, not its binary neighbor: 0.3 epochs of 5 steps are 1.5 steps.
        count = Fraction(str(self.amount)) * each[self.unit]
        least = 1 if self.unit == "epochs" and self.amount > 0 else 0
        return math.ceil(count) if self.unit == "images" else max(least, round(count))


def from_dict(cls: type[T], data: Mapping[str, Any], *, where: str = "") -> T:
    """Build the dataclass from plain data, found at the dotted path `where` of a larger whole.

    In a union the first member that fits is taken; of dataclasses, the one that fits best.
    """
    return _Decoder().result(cls, data, where)


def merge(obj: T, changes: Mapping[str, Any]) -> T:
    """Return obj with a nested partial dict applied; what it does not name stays.

    In a union of dataclasses, changes that fit another better put it in the present one's place.
    """
    return _Decoder().result(type(obj), changes, "", obj)


def override(obj: T, path: str, text: str) -> T:
    """Return obj with the field at the dotted path read from text, as its type allows.

    "0.9,0.999" is a tuple, "true" a bool, "none" or "null" None.
    """
    change: Any = text
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    for change in (_literal(text), [_literal(part) for part in parts], parts, text):
        for key in reversed(path.split(".")):
            change = {key: change}
        decoder = _Decoder()
        with suppress(InputError):
            return decoder.result(type(obj), change, "", obj)
        if decoder.fits:
            break  # so read, the text is of the right type, and only its value is wrong
    return merge(obj, change)  # raises that, or what is wrong with the text as it was given


def to_dict(obj: DataclassInstance) -> dict[str, Any]:
    """Return the plain data, ready for JSON, from which `from_dict` builds an equal object."""

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: plain(item) for key, item in value.items()}
        if isinstance(value, tuple):
            return [plain(item) for item in value]
        if isinstance(value, (Path, Duration)):
            return str(value)
        return to_dict(value) if _is_config(type(value)) else value

    return {name: plain(getattr(obj, name)) for name in _kinds(type(obj))}


def flatten(data: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Return nested plain data by dotted paths."""
    found: dict[str, Any] = {}
    for key, value in data.items():
        path = _join(where, key)
        found |= flatten(value, path) if isinstance(value, Mapping) else {path: value}
    return found


def read_file(path: str | Path) -> dict[str, Any]:
    """Read the mapping that a .yaml, .yml, .toml or .json file holds."""
    path = Path(path)
    readers = {".yaml": _yaml, ".yml": _yaml, ".toml": tomllib.loads, ".json": _json}
    if path.suffix.lower() not in readers:
        raise InputError(f"{path}: expected a file that ends in {_either(readers)}")
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


class _Decoder:
    """Reads plain data as typed values, and notes every problem on the way."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.fits = True  # whether all keys and types were right, whatever the values were

    def result(self, kind: Any, value: Any, where: str, base: Any = None) -> Any:
        result = self.decode(kind, value, where, base)
        if self.problems:
            raise InputError(*self.problems)
        return result

    def decode(self, kind: Any, value: Any, where: str, base: Any = None) -> Any:
        """Read value as this type; what it leaves out of a dataclass or dict comes from base."""
        origin, args = get_origin(kind), get_args(kind)
        if origin in (Union, UnionType):
            return self.union(kind, value, where, base)
        if _is_config(kind) and isinstance(value, Mapping):
            return self.config(kind, value, where, base)
        if origin is dict and isinstance(value, Mapping) and all(isinstance(k, str) for k in value):
            old = base if isinstance(base, dict) else {}
            decode = partial(self.decode, args[1])
            return old | {k: decode(v, _join(where, k), old.get(k)) for k, v in value.items()}
        if origin is tuple and isinstance(value, (list, tuple)):
            kinds = args[:1] * len(value) if args[-1] is Ellipsis else args
            if len(kinds) == len(value):
                items = enumerate(zip(kinds, value, strict=True))
                return tuple(self.decode(k, item, f"{where}[{i}]") for i, (k, item) in items)
        # Compared with its type, because True == 1 but is not meant by it.
        if origin is Literal and (type(value), value) in [(type(arg), arg) for arg in args]:
            return value
        return (
            self.scalar(kind, value, where) if origin is None else self.refuse(kind, value, where)
        )

    def scalar(self, kind: Any, value: Any, where: str) -> Any:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        text = isinstance(value, str)
        with suppress(ValueError, OverflowError):
            if kind is int and number and value == int(value):
                return int(value)
            # Text too, because YAML 1.1 readers leave 1e-3 as text.
            if kind is float and (number or text) and math.isfinite(float(value)):
                return float(value)
        if kind is Duration and (number or text):
            return self.make(where, Duration.parse, str(value))
        if kind is Path and text:
            return Path(value)
        if kind in (int, float) or not isinstance(value, kind):
            return self.refuse(kind, value, where)
        return value

    def union(self, kind: Any, value: Any, where: str, base: Any) -> Any:
        def misfits(cls: Any) -> tuple[int, bool]:
            trial = _Decoder()
            trial.fields(cls, value, where, base)
            return len(trial.problems), not isinstance(base, cls)  # among equals, the present one

        configs = [member for member in get_args(kind) if _is_config(member)]
        if configs and isinstance(value, Mapping):
            return self.config(min(configs, key=misfits), value, where, base)
        for member in get_args(kind):
            with suppress(InputError):
                return _Decoder().result(member, value, where, base)
        return self.refuse(kind, value, where)

    def config(self, cls: Any, data: Mapping[Any, Any], where: str, base: Any) -> Any:
        before = len(self.problems)
        values = self.fields(cls, data, where, base)
        if len(self.problems) > before:
            return None
        build = partial(dataclasses.replace, base) if isinstance(base, cls) else cls
        return self.make(where, build, **values)

    def fields(self, cls: Any, data: Mapping[Any, Any], where: str, base: Any) -> dict[str, Any]:
        """Decode what data has for the fields; note unknown keys, and needed ones that it lacks."""
        kinds, values = _kinds(cls), {}
        old = base if isinstance(base, cls) else None
        for key, item in data.items():
            path = _join(where, key)
            if key in kinds:
                values[key] = self.decode(kinds[key], item, path, getattr(old, key, None))
            else:
                hint = suggest(str(key), kinds, where=where) or f"; the keys are {', '.join(kinds)}"
                self.misfit(f"unknown key '{path}'{hint}")
        for field in dataclasses.fields(cls):
            needed = field.init and field.default is field.default_factory  # both are MISSING
            if needed and old is None and field.name not in data:
                self.misfit(f"missing key '{_join(where, field.name)}'")
        return values

    def make(self, where: str, build: Callable[..., Any], *args: Any, **values: Any) -> Any:
        try:
            return build(*args, **values)
        except ValueError as error:
            self.problems.append(f"{where}: {error}" if where else str(error))

    def refuse(self, kind: Any, value: object, where: str) -> None:
        problem = f"expected {_name(kind)}, got {shorten(value)}"
        self.misfit(f"{where}: {problem}" if where else problem)

    def misfit(self, problem: str) -> None:
        self.fits = False
        self.problems.append(problem)


def _literal(text: str) -> Any:
    words = {"none": None, "null": None, "true": True, "false": False}
    for read in (words.__getitem__, int, float):
        with suppress(KeyError, ValueError):
            return read(text.lower())
    return text


def _kinds(cls: Any) -> dict[str, Any]:
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls) if field.init}


def _is_config(kind: Any) -> bool:
    return isinstance(kind, type) and dataclasses.is_dataclass(kind) and kind is not Duration


def _name(kind: Any) -> str:
    if get_origin(kind) in (Literal, Union, UnionType):
        return _either(map(repr if get_origin(kind) is Literal else _name, get_args(kind)))
    if _is_config(kind):
        return f"keys and values ({', '.join(_kinds(kind))})"
    if get_origin(kind) is tuple:
        return "a list" if Ellipsis in get_args(kind) else f"a list of {len(get_args(kind))}"
    names = {NoneType: "null", Duration: _A_DURATION, int: "a whole number", float: "a number"}
    names |= {str: "text", bool: "true or false", Path: "a path"}
    return names.get(kind) or (kind.__name__ if isinstance(kind, type) else str(kind))


def _either(words: Iterable[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} or {last}" if most else last


def _join(where: str, key: object) -> str:
    return f"{where}.{key}" if where else str(key)
