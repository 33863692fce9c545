"""Import paths: how settings name functions and classes, `package.module:name`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from vitrail.config.wording import InputError

OBJECT = "object:"
"""What stands in the settings for an object that can't be imported, before its name."""


def is_import_path(text: str) -> bool:
    """Tell whether a name in the settings is an import path, not one of ours."""
    return ":" in text or "." in text


def path_of(part: Any) -> str:
    """Return a function's or class's import path; `object:NAME` where it can't be imported."""
    module, name = getattr(part, "__module__", None), getattr(part, "__qualname__", None)
    if module and name and module != "__main__":
        path = f"{module}:{name}"
        try:
            if _find(path) is part:
                return path
        except (ImportError, AttributeError):  # a lambda, or a function within a function
            pass
    return f"{OBJECT}{name or type(part).__name__}"


def import_callable(path: str, what: str) -> Callable[..., Any]:
    """Import a function or class by `package.module:name` (or `package.module.name`).

    Modules in the current folder are found too, after the installed ones.
    """
    if path.startswith(OBJECT):
        raise InputError(
            f"the run began with {what} of your own, {path.removeprefix(OBJECT)}, which has no "
            f"import path; give it again: train(…, {what}=…)"
        )
    if (here := os.getcwd()) not in sys.path:  # which the console script leaves out
        sys.path.append(here)
    try:
        return check_callable(_find(path), what)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{what}: cannot import {path!r} ({error}); expected package.module:name"
        ) from None


def check_callable(part: Any, what: str) -> Callable[..., Any]:
    """Refuse what can't be called."""
    if callable(part):
        return part
    raise InputError(f"{what}: expected a function or class, got {type(part).__name__}")


def _find(path: str) -> Any:
    module, colon, name = path.partition(":")
    if not colon:
        module, _, name = path.rpartition(".")
    found: Any = import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found
