"""Configuration records from plain data and back, whole or in part."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from vitrail.config.decoder import Decoder, Text, is_config, vars_of
from vitrail.config.duration import Duration
from vitrail.config.wording import InputError, join_path

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")


def from_dict(cls: type[T], data: Mapping[str, Any], *, where: str = "") -> T:
    """Build the dataclass from plain data, found at the dotted path `where` of a larger whole.

    In a union the first member that fits is taken; of dataclasses, the one that fits best.
    """
    return Decoder().result(cls, data, where)


def validate(record: DataclassInstance, where: str = "") -> None:
    """Read each field by its type, as from a file at the path `where`, and keep what was read.

    For the `__post_init__` of a configuration record: what a file may say, Python may too (text for
    a Path or a Duration, a dict for a record), and what is refused there is refused here.
    """
    decoder, cls = Decoder(), type(record)
    given = vars_of(record)
    values = decoder.fields(cls, given, where, None)
    if not decoder.problems:
        decoder.check_used(cls, values, where, values)
    if decoder.problems:
        raise InputError(*decoder.problems)
    for name, value in values.items():
        object.__setattr__(record, name, value)


def merge(obj: T, *changes: Mapping[str, Any]) -> T:
    """Return obj with nested partial dicts applied at once, the later ones over the earlier.

    In a union of dataclasses, changes that fit another member better replace the present one.
    """
    return Decoder().result(type(obj), _combine(changes), "", obj)


def override(obj: T, path: str, text: str) -> T:
    """Return obj with the field at the dotted path read from text, as its type allows."""
    return merge(obj, from_flags([(path, text)]))


def from_flags(settings: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Nest settings by dotted path for `merge`; a text is read as its field's type allows.

    "0.9,0.999" is a tuple, "true" a bool, "none" or "null" None. A record stands for its fields.
    """
    nested: dict[str, Any] = {}
    for path, value in settings:
        change: Any = Text(value) if isinstance(value, str) else _plain(value)
        for key in reversed(path.split(".")):
            change = {key: change}
        nested = _combine((nested, change))
    return nested


def to_dict(obj: DataclassInstance) -> dict[str, Any]:
    """Return the plain data, ready for JSON, from which `from_dict` builds an equal object."""
    return {name: _plain(value) for name, value in vars_of(obj).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, (Path, Duration)):
        return str(value)
    return to_dict(value) if is_config(type(value)) else value


def flatten(data: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Return nested plain data by dotted paths."""
    found: dict[str, Any] = {}
    for key, value in data.items():
        path = join_path(where, key)
        found |= flatten(value, path) if isinstance(value, Mapping) else {path: value}
    return found


def _combine(changes: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Unite nested dicts; a later value takes an earlier one's place."""
    united: dict[str, Any] = {}
    for change in changes:
        for key, value in change.items():
            both = isinstance(value, Mapping) and isinstance(united.get(key), Mapping)
            united[key] = _combine((united[key], value)) if both else value
    return united
