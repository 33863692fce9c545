"""Typed, closed configuration: plain data in, frozen dataclasses out, and back.

What does not belong is refused, all mistakes at once. It must not know what is configured.
"""

from vitrail.config.config_files import read_file
from vitrail.config.constraints import (
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Range,
    UnitFloat,
    UsedIf,
)
from vitrail.config.duration import Duration, Unit
from vitrail.config.import_paths import (
    OBJECT,
    check_callable,
    import_callable,
    is_import_path,
    path_of,
)
from vitrail.config.records import (
    flatten,
    from_dict,
    from_flags,
    merge,
    override,
    to_dict,
    validate,
)
from vitrail.config.wording import InputError, suggest

__all__ = [
    "OBJECT",
    "Duration",
    "InputError",
    "NonNegativeFloat",
    "NonNegativeInt",
    "PositiveFloat",
    "PositiveInt",
    "Range",
    "Unit",
    "UnitFloat",
    "UsedIf",
    "check_callable",
    "flatten",
    "from_dict",
    "from_flags",
    "import_callable",
    "is_import_path",
    "merge",
    "override",
    "path_of",
    "read_file",
    "suggest",
    "to_dict",
    "validate",
]
