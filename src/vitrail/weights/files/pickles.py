"""Follow a pickle's instructions without executing them, to know the tensors that it describes.

Nothing that a pickle names is imported or built: a tensor becomes a record of its shape, and any
name that a dictionary of tensors does not need is refused.
"""

from __future__ import annotations

import itertools
import math
import pickletools
from collections.abc import Iterable
from dataclasses import dataclass, field
from reprlib import repr as shorten
from types import NoneType
from typing import IO, Any, NoReturn

import torch

from vitrail.config import InputError

STEPS = 1_000_000
"""Most instructions of a pickle, and items that they copy; a tensor takes about 25."""

_DTYPES = {
    "torch.DoubleStorage": torch.float64,
    "torch.FloatStorage": torch.float32,
    "torch.HalfStorage": torch.float16,
    "torch.BFloat16Storage": torch.bfloat16,
    "torch.LongStorage": torch.int64,
    "torch.IntStorage": torch.int32,
    "torch.ShortStorage": torch.int16,
    "torch.CharStorage": torch.int8,
    "torch.ByteStorage": torch.uint8,
    "torch.BoolStorage": torch.bool,
}
_TENSOR, _PARAMETER = "torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_parameter"
_ORDERED, _SIZE = "collections.OrderedDict", "torch.Size"
_LEAVES = {"collections.Counter", "torch.device", *map(str, set(_DTYPES.values()))}
_KNOWN = {_TENSOR, _PARAMETER, _ORDERED, _SIZE, *_LEAVES, *_DTYPES}

_ARGUMENT = {"BININT", "BININT1", "BININT2", "BINFLOAT", "BINUNICODE", "SHORT_BINSTRING", "LONG1"}
_MAKERS = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_TUPLE": tuple,
    "EMPTY_LIST": list,
    "EMPTY_DICT": dict,
}


@dataclass(frozen=True)
class _Name:
    """A name that a pickle asks for; nothing is looked up."""

    text: str


@dataclass(frozen=True)
class Storage:
    """The numbers of one or more tensors."""

    key: str
    dtype: torch.dtype
    numel: int

    @property
    def nbytes(self) -> int:
        """Bytes that the numbers take."""
        return self.numel * self.dtype.itemsize


@dataclass(frozen=True)
class TensorRecord:
    """A tensor as the pickle describes it."""

    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass
class PickleReader:
    """Follows a pickle's instructions, on records only."""

    storages: dict[str, Storage] = field(default_factory=dict)
    stack: list[Any] = field(default_factory=list)
    below: list[list[Any]] = field(default_factory=list)
    """What the marks of the pickle hide from its instructions, as stacks."""
    steps: int = 0

    def follow(self, stream: IO[bytes]) -> Any:
        """Give what the next pickle of a stream describes."""
        self.stack, self.below = [], []
        memo: dict[Any, Any] = {}
        for code, argument, _ in pickletools.genops(stream):
            self.spend(1)
            if code.name in _ARGUMENT:
                self.stack.append(argument)
            elif code.name in _MAKERS:
                self.stack.append(_MAKERS[code.name]())
            elif code.name == "MARK":
                self.below.append(self.stack)
                self.stack = []
            elif code.name in ("BINGET", "LONG_BINGET"):
                self.stack.append(memo[argument])
            elif code.name in ("BINPUT", "LONG_BINPUT"):
                memo[argument] = self.stack[-1]
            elif code.name == "GLOBAL":
                self.stack.append(_name(str(argument)))
            elif code.name == "STOP":
                return self.stack.pop()
            elif code.name != "PROTO":
                self.act(code.name)

    def act(self, code: str) -> None:
        """Follow an instruction that puts together what is on the stack."""
        match code:
            case "TUPLE" | "TUPLE1" | "TUPLE2" | "TUPLE3":
                items = self.take(int(code[5:]) if code[5:] else None)
                self.stack.append(tuple(items))
            case "APPEND" | "APPENDS":
                items = self.take(1 if code == "APPEND" else None)
                _expect(self.stack[-1], list).extend(items)
            case "SETITEM" | "SETITEMS":
                items = self.take(2 if code == "SETITEM" else None)
                pairs = zip(items[::2], items[1::2], strict=True)
                _expect(self.stack[-1], dict).update(_dict(pairs))
            case "REDUCE":
                name, arguments = self.take(2)
                name, arguments = _expect(name, _Name).text, _expect(arguments, tuple)
                for argument in arguments:
                    self.spend(len(argument) if isinstance(argument, (list, tuple, dict)) else 1)
                self.stack.append(_call(name, arguments))
            case "BUILD":  # the versions of modules that state_dict() hangs on its dictionary
                target, state = self.take(2)
                if set(_expect(state, dict)) != {"_metadata"}:
                    raise ValueError("it sets attributes, which weights do not have")
                self.stack.append(_expect(target, dict))
            case "BINPERSID":
                self.stack.append(self.store(*_expect(self.stack.pop(), tuple)))
            case "STACK_GLOBAL":
                _refuse(".".join(_expect(text, str) for text in self.take(2)))
            case _:
                raise InputError(f"refused: plain weights need no {code} in their pickle")

    def take(self, count: int | None) -> list[Any]:
        """Take a number of items from the stack, or all above the last mark."""
        items = self.stack
        if count is None:
            self.stack = self.below.pop()
            return items
        if len(items) < count:
            raise ValueError("an instruction has nothing to work on")
        items = items[-count:]
        del self.stack[-count:]
        return items

    def spend(self, steps: int) -> None:
        """Stop what would take too long."""
        self.steps += steps
        if self.steps > STEPS:
            raise InputError(f"refused: its pickle takes more than {STEPS:_} steps")

    def store(
        self, word: str, kind: Any, key: str, place: str, numel: int, view: object = None
    ) -> Storage:
        """Note a storage that tensors refer to; `place` is where it was, such as "cuda:0"."""
        name = _expect(kind, _Name).text
        if word != "storage" or name not in _DTYPES or view is not None or type(key) is not str:
            _refuse(name)
        storage = Storage(key, _DTYPES[name], _count(numel))
        if self.storages.setdefault(key, storage) != storage:
            raise ValueError(f"two sizes of the storage {shorten(key)} at {shorten(place)}")
        return storage


def _name(argument: str) -> _Name:
    """Let a name pass that plain weights need."""
    text = argument.replace(" ", ".")
    if text not in _KNOWN:
        _refuse(text)
    return _Name(text)


def _refuse(name: str) -> NoReturn:
    raise InputError(
        f"refused: this file wants to run code ({name[:80]!r}), as it holds more than weights; "
        "ask its author for safetensors"
    )


def _call(name: str, arguments: tuple[Any, ...]) -> Any:
    """Say what a call would give."""
    if name == _TENSOR:
        return _declare(*arguments[:4])
    if name == _PARAMETER:
        return _expect(arguments[0], TensorRecord)
    if name == _ORDERED:
        return _dict(*arguments)
    if name == _SIZE:
        return tuple(*arguments)
    if name not in _LEAVES:
        raise ValueError(f"{name} is called")
    return _Name(name)


def _declare(storage: Any, offset: int, shape: Any, strides: Any) -> TensorRecord:
    """Note a tensor, which must lie within its storage and not repeat parts of it."""
    storage = _expect(storage, Storage)
    if len(shape) > 64:
        raise ValueError(f"a tensor has {len(shape)} axes")
    shape, strides = tuple(map(_count, shape)), tuple(map(_count, strides))
    numel = math.prod(shape)
    last = sum((side - 1) * step for side, step in zip(shape, strides, strict=True))
    if numel > storage.numel or (numel and _count(offset) + last >= storage.numel):
        raise InputError(
            f"refused: a tensor of shape {shorten(shape)} says it holds "
            f"{numel * storage.dtype.itemsize:_} bytes, its storage {storage.nbytes:_}"
        )
    return TensorRecord(shape, storage.dtype)


def _dict(pairs: Iterable[Any] = ()) -> dict[Any, Any]:
    """Make a dictionary; tuples can't be keys: hashing nested ones may take forever."""
    made: dict[Any, Any] = {}
    for key, value in pairs:
        if not isinstance(key, (str, int, float, NoneType)):
            raise ValueError(f"a {type(key).__name__} is a key")
        made[key] = value
    return made


def _expect(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"a {type(value).__name__} stands where a {kind.__name__} is needed")
    return value


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**62:
        raise ValueError(f"{shorten(value)} is not a size")
    return value


def first_name(head: bytes) -> str | None:
    """Name the first class or function that a pickle of any kind asks for."""
    texts: list[str] = []
    try:
        for code, argument, _ in itertools.islice(pickletools.genops(head), STEPS):
            if code.name in ("GLOBAL", "INST"):
                return str(argument).replace(" ", ".")
            if code.name == "STACK_GLOBAL":
                return ".".join(texts[-2:])
            if isinstance(argument, str):
                texts.append(argument)
    except Exception:  # cut off or no pickle: then there is nothing to name
        return None
    return None
