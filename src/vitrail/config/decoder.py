"""Plain data read as typed values, every problem noted on the way."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from reprlib import repr as shorten
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from vitrail.config.constraints import Range, UsedIf
from vitrail.config.duration import A_DURATION, Duration
from vitrail.config.wording import InputError, either, is_number, join_path, read_literal, suggest


class Text(str):
    """Text of the command line, to be read as the type of its field."""

    __slots__ = ()


class Decoder:
    """Reads plain data as typed values, and notes every problem on the way."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.fits = True  # whether all keys and types were right, whatever the values were

    def result(self, kind: Any, value: Any, where: str, base: Any = None) -> Any:
        """Read value as `decode` does, or raise all problems at once."""
        result = self.decode(kind, value, where, base)
        if self.problems:
            raise InputError(*self.problems)
        return result

    def decode(self, kind: Any, value: Any, where: str, base: Any = None) -> Any:
        """Read value as this type; what it leaves out of a dataclass or dict comes from base."""
        origin, args = get_origin(kind), get_args(kind)
        if isinstance(value, Text):
            return self._text(kind, str(value), where, base)
        if origin is Annotated:
            return self._annotated(args, value, where, base)
        if origin in (Union, UnionType):
            return self._union(kind, value, where, base)
        if is_config(kind) and isinstance(value, Mapping):
            return self._config(kind, value, where, base)
        if origin is dict and isinstance(value, Mapping) and all(isinstance(k, str) for k in value):
            old = base if isinstance(base, dict) else {}
            decode = partial(self.decode, args[1])
            return old | {k: decode(v, join_path(where, k), old.get(k)) for k, v in value.items()}
        if origin is tuple and isinstance(value, (list, tuple)):
            kinds = args[:1] * len(value) if args[-1] is Ellipsis else args
            if len(kinds) == len(value):
                items = enumerate(zip(kinds, value, strict=True))
                return tuple(self.decode(k, item, f"{where}[{i}]") for i, (k, item) in items)
        # Compared with its type, because True == 1 but is not meant by it.
        if origin is Literal and (type(value), value) in [(type(arg), arg) for arg in args]:
            return value
        return (
            self._scalar(kind, value, where) if origin is None else self._refuse(kind, value, where)
        )

    def _text(self, kind: Any, text: str, where: str, base: Any) -> Any:
        """Read text as a number, word or list where the type wants one, else as it is."""
        parts = [part.strip() for part in text.split(",")] if text.strip() else []
        for reading in (read_literal(text), [read_literal(part) for part in parts], parts, text):
            trial = Decoder()
            decoded = trial.decode(kind, reading, where, base)
            if trial.fits:
                break  # so read, the text is of the right type, and at most its value is wrong
        self._adopt(trial)
        return decoded

    def _annotated(self, args: tuple[Any, ...], value: Any, where: str, base: Any) -> Any:
        trial = Decoder()
        decoded = trial.decode(args[0], value, where, base)
        for allowed in args[1:]:
            if isinstance(allowed, Range) and not trial.problems and decoded not in allowed:
                trial.problems.append(f"{where} must be {allowed}, got {value}".lstrip())
        self._adopt(trial)
        return decoded

    def _adopt(self, trial: Decoder) -> None:
        self.problems += trial.problems
        self.fits &= trial.fits

    def _scalar(self, kind: Any, value: Any, where: str) -> Any:
        number = is_number(value)
        text = isinstance(value, str)
        with suppress(ValueError, OverflowError):
            if kind is int and number and value == int(value):
                return int(value)
            # Text too, because YAML 1.1 readers leave 1e-3 as text.
            if kind is float and (number or text) and math.isfinite(float(value)):
                return float(value)
        if kind is Duration and (number or text):
            return self._make(where, Duration.parse, str(value))
        if kind is Path and text:
            return Path(value)
        if kind in (int, float) or not isinstance(value, kind):
            return self._refuse(kind, value, where)
        return value

    def _union(self, kind: Any, value: Any, where: str, base: Any) -> Any:
        def misfits(cls: Any) -> tuple[int, bool]:
            trial = Decoder()
            trial.fields(cls, value, where, base)
            return len(trial.problems), not isinstance(base, cls)  # among equals, the present one

        configs = [member for member in get_args(kind) if is_config(member)]
        if configs and isinstance(value, Mapping):
            return self._config(min(configs, key=misfits), value, where, base)
        for member in get_args(kind):
            trial = Decoder()
            decoded = trial.decode(member, value, where, base)
            if trial.fits:  # the type is right, and perhaps the value
                self._adopt(trial)
                return decoded
        return self._refuse(kind, value, where)

    def _config(self, cls: Any, data: Mapping[Any, Any], where: str, base: Any) -> Any:
        before = len(self.problems)
        values = self.fields(cls, data, where, base)
        old = base if isinstance(base, cls) else None
        if len(self.problems) == before:
            known = (
                {name: getattr(old, name) for name in field_types(cls)} if old else _defaults(cls)
            )
            values |= self.check_used(cls, values, where, known | values)
        if len(self.problems) > before:
            return None
        return self._make(where, partial(dataclasses.replace, old) if old else cls, **values)

    def check_used(
        self, cls: Any, given: Mapping[str, Any], where: str, values: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Note what is given but not used; return the defaults of what is neither."""
        unused: dict[str, Any] = {}
        defaults = _defaults(cls)
        for name, condition in _conditions(cls).items():
            if (now := values[condition.field]) in condition.values:
                continue
            if name not in given:
                unused[name] = defaults[name]
            elif given[name] != defaults[name]:
                path = join_path(where, _first_change(name, given[name], defaults[name]))
                only = either(map(str, condition.values))
                self.problems.append(
                    f"{path} is not used with {condition.field} {now}, only with {only}; "
                    "leave it out"
                )
        return unused

    def fields(self, cls: Any, data: Mapping[Any, Any], where: str, base: Any) -> dict[str, Any]:
        """Decode what data has for the fields; note unknown keys, and needed ones that it lacks."""
        kinds, values = field_types(cls), {}
        old = base if isinstance(base, cls) else None
        for key, item in data.items():
            path = join_path(where, key)
            if key in kinds:
                values[key] = self.decode(kinds[key], item, path, getattr(old, key, None))
            else:
                hint = suggest(str(key), kinds, where=where) or f"; the keys are {', '.join(kinds)}"
                self._misfit(f"unknown key '{path}'{hint}")
        for field in dataclasses.fields(cls):
            needed = field.init and field.default is field.default_factory  # both are MISSING
            if needed and old is None and field.name not in data:
                self._misfit(f"missing key '{join_path(where, field.name)}'")
        return values

    def _make(self, where: str, build: Callable[..., Any], *args: Any, **values: Any) -> Any:
        try:
            return build(*args, **values)
        except ValueError as error:
            said = str(error)
            self.problems.append(said if said.startswith(where) else f"{where}: {said}")

    def _refuse(self, kind: Any, value: object, where: str) -> None:
        problem = f"expected {_name(kind)}, got {shorten(value)}"
        self._misfit(f"{where}: {problem}" if where else problem)

    def _misfit(self, problem: str) -> None:
        self.fits = False
        self.problems.append(problem)


@cache
def field_types(cls: Any) -> dict[str, Any]:
    """Give the types of a dataclass's fields by name."""
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls) if field.init}


def vars_of(record: Any) -> dict[str, Any]:
    """Give the fields of a record by name, as they are."""
    return {name: getattr(record, name) for name in field_types(type(record))}


@cache
def _conditions(cls: Any) -> dict[str, UsedIf]:
    """Find the fields that are used only with some values of another."""
    return {
        name: each
        for name, kind in field_types(cls).items()
        if get_origin(kind) is Annotated
        for each in get_args(kind)[1:]
        if isinstance(each, UsedIf)
    }


def _defaults(cls: Any) -> dict[str, Any]:
    found = {}
    for field in dataclasses.fields(cls):
        if field.default is not dataclasses.MISSING:
            found[field.name] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            found[field.name] = field.default_factory()
    return found


def _first_change(path: str, value: Any, default: Any) -> str:
    """Name the first field, at any depth, in which a record differs from another."""
    if is_config(type(value)) and type(value) is type(default):
        for name in field_types(type(value)):
            if (given := getattr(value, name)) != (usual := getattr(default, name)):
                return _first_change(f"{path}.{name}", given, usual)
    return path


def is_config(kind: Any) -> bool:
    """Tell whether a type is a record of keys and values."""
    return isinstance(kind, type) and dataclasses.is_dataclass(kind) and kind is not Duration


def _name(kind: Any) -> str:
    if get_origin(kind) is Annotated:
        return _name(get_args(kind)[0])
    if get_origin(kind) in (Literal, Union, UnionType):
        return either(map(repr if get_origin(kind) is Literal else _name, get_args(kind)))
    if is_config(kind):
        return f"keys and values ({', '.join(field_types(kind))})"
    if get_origin(kind) is tuple:
        return "a list" if Ellipsis in get_args(kind) else f"a list of {len(get_args(kind))}"
    names = {NoneType: "null", Duration: A_DURATION, int: "a whole number", float: "a number"}
    names |= {str: "text", bool: "true or false", Path: "a path"}
    return names.get(kind) or (kind.__name__ if isinstance(kind, type) else str(kind))
