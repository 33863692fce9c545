"""The way in which a model is put to use: one that the user names, or the fastest, measured once.

What takes seconds to make is kept in the cache, by the weights' digest: the exported graph, and for
each kind of machine what was measured. All of it may be deleted, and is made again then.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from vitrail import __version__
from vitrail.config import InputError, from_dict, suggest, to_dict
from vitrail.deploy.backends.backends import BACKENDS, REFERENCE, BackendContext
from vitrail.deploy.backends.bench import Settings, compare
from vitrail.download import cache_folder
from vitrail.files import write_whole
from vitrail.predictor import BatchingConfig, Predictor
from vitrail.predictor.batching_config import cores

AUTO = "auto"
"""The fastest of the exact ways that start in seconds."""
_MOST = 32  # images that are measured on


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What was measured to be fastest."""

    way: str
    micro: int
    """Images that run through the model at once."""


def choices() -> tuple[str, ...]:
    """List what may be asked for, the usual way first: the same answers, made in seconds."""
    return *(name for name, way in BACKENDS.items() if way.exact and way.quick), AUTO


def check_way(way: str) -> None:
    """Refuse a way that there is not."""
    if way not in choices():
        more = "; `vitrail bench` measures it" if way in BACKENDS else suggest(way, choices())
        raise InputError(f"--way {way}: expected {', '.join(choices())}{more}")


def select_backend(
    predictor: Predictor,
    way: str,
    *,
    pace: BatchingConfig | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Predictor:
    """Give a predictor that computes in a way; `say` hears of what takes long.

    Of `pace`, which is the predictor's own unless given, a measured choice changes `micro` alone.
    """
    check_way(way)
    pace = pace or predictor.pace
    on_processor = predictor.device.type == "cpu"
    if way == REFERENCE or (way == AUTO and not on_processor):
        return predictor
    if not on_processor:
        raise InputError(f"--way {way} is for a processor, not for {predictor.device}")
    folder = cache_folder() / "ways" / _digest(predictor)
    with _alone(folder):  # another process may have made already what is needed
        if way == AUTO:
            choice = _read(folder / _machine()) or _measure(predictor, folder, say)
            way, pace = choice.way, replace(pace, micro=choice.micro)
        make = BACKENDS[way].make
        try:
            engine = make(BackendContext(predictor, folder, None), pace)
        except InputError:
            (folder / "model.onnx").unlink(missing_ok=True)  # perhaps a damaged one
            engine = make(BackendContext(predictor, folder, None), pace)
    return predictor.with_engine(engine, pace)


def _measure(predictor: Predictor, folder: Path, say: Callable[[str], None]) -> Choice:
    say(f"{predictor.name}: measuring which way is fastest on this machine, once")
    usual = predictor.pace
    settings = Settings(
        ways=tuple(name for name in choices() if name != AUTO),
        images=min(2 * usual.micro * usual.workers, _MOST),
    )
    best = compare(predictor, folder, None, settings)[0].best
    say(f"{predictor.name}: {best.way}, {best.pace.micro} images at once: {best.ratio:.2f}x")
    choice = Choice(way=best.way, micro=best.pace.micro)
    write_whole(folder / _machine(), json.dumps(to_dict(choice)) + "\n")
    return choice


def _read(path: Path) -> Choice | None:
    """Read what was measured; None where nothing was, or it can't be understood."""
    with suppress(OSError, ValueError, InputError):
        choice = from_dict(Choice, json.loads(path.read_text(encoding="utf-8")))
        if choice.way in choices() and choice.way != AUTO and choice.micro > 0:
            return choice
    return None


def _digest(predictor: Predictor) -> str:
    """Name a model by all that decides its graph."""
    facts = (__version__, version("torch"), predictor.model.spec, predictor.preprocess.size)
    digest = hashlib.sha256(" ".join(map(str, facts)).encode())
    for name, tensor in sorted(predictor.model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().contiguous().numpy().data)
    return digest.hexdigest()[:32]


def _machine() -> str:
    """Name the file for machines of this kind, with these programs."""
    facts = [platform.machine(), platform.processor(), str(cores())]
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        facts += sorted({line for line in lines if line.startswith(("model name", "flags"))})
    for package in ("torch", "onnxruntime", "openvino"):
        with suppress(PackageNotFoundError):
            facts.append(f"{package} {version(package)}")
    return f"{hashlib.sha256(' '.join(facts).encode()).hexdigest()[:16]}.json"


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Wait until no other process works in a folder, which is made, and keep others waiting."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror}; set VITRAIL_CACHE to another") from None
    try:
        with suppress(ImportError, OSError):  # without locks, each makes its own
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
