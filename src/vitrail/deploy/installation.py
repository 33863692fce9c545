"""What is installed, on which machine, and what is in the cache."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import TYPE_CHECKING

from vitrail import __version__
from vitrail.download import cache_folder
from vitrail.machine import available_cores, available_memory
from vitrail.result import Result, ResultTable
from vitrail.text import show

if TYPE_CHECKING:
    from vitrail.weights.published.catalog import PublishedWeights

_USES = {
    "hub": "weights of timm: and hf:",
    "data": "hf: and parquet: datasets, multispectral TIFF",
    "text": "classes given as text",
    "tb": "TensorBoard curves",
    "onnx": "export to ONNX, faster predictions",
    "openvino": "OpenVINO",
    "serve": "vitrail serve",
    "ray": "evaluation on many machines",
    "heic": "photos of phones (HEIC)",
    "studies": "tables of sweeps in pandas",
}
"""The extras for users, and what each is for."""


@dataclass(frozen=True)
class Extra:
    """An optional part of the installation."""

    name: str
    use: str
    missing: tuple[str, ...]
    """Packages that are not installed."""


@dataclass(frozen=True)
class CachedWeights:
    """Published weights that are on this machine."""

    source: str
    megabytes: float
    license: str


@dataclass(frozen=True, kw_only=True)
class DoctorReport(Result):
    """What commands will find here."""

    vitrail: str
    python: str
    torch: str
    device: str
    """Where models run unless told otherwise."""
    cores: int
    memory_gb: float
    """Memory that is free."""
    extras: tuple[Extra, ...]
    cache: Path
    weights: tuple[CachedWeights, ...]

    def summary(self) -> Iterator[ResultTable | str]:
        """Give one line per question, then the weights that are here."""
        yield f"vitrail  {self.vitrail}, Python {self.python}, PyTorch {self.torch}"
        yield f"device   {self.device}; {self.cores} cores, {self.memory_gb:.1f} GB free"
        there = [each.name for each in self.extras if not each.missing]
        yield f"extras   {', '.join(there) or 'none'}"
        for each in self.extras:
            if each.missing:
                lack = ", ".join(each.missing)
                yield f"         missing {each.name} ({each.use}; lacks {lack}): " + _install(each)
        yield f"cache    {self.cache}"
        if self.weights:
            yield ResultTable(
                ("weights at hand", "MB", "license"),
                [(each.source, f"{each.megabytes:,.0f}", each.license) for each in self.weights],
            )
        else:
            yield "weights  none at hand; 'vitrail weights list' lists what there is"

    def brief(self) -> str:
        """Say the same in a few lines, and how to begin."""
        lacking = [each.name for each in self.extras if each.missing]
        lack = f"without the extras {', '.join(lacking)}" if lacking else "with all extras"
        weights = f"weights at hand: {len(self.weights) or 'none'}, in"
        return (
            f"vitrail {self.vitrail}, PyTorch {self.torch}, {lack}\n"
            f"{self.device}, {self.cores} cores; {weights} {show(self.cache)}\n"
            "'vitrail doctor' tells more, with licenses.\n"
            "To begin: 'vitrail demo', or 'vitrail finetune photos/' with one folder per class."
        )


def _install(extra: Extra) -> str:
    return f"pip install 'vitrail[{extra.name}]'"


def list_extras() -> tuple[Extra, ...]:
    """List the extras, each with the packages that it lacks."""
    return tuple(Extra(name, use, _missing(name)) for name, use in _USES.items())


def doctor() -> DoctorReport:
    """Say what is installed, which device is used, which extras lack, and what is cached."""
    import torch

    from vitrail.distributed import choose_device
    from vitrail.weights.published.at_hand import cached_weights

    device = choose_device()
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return DoctorReport(
        vitrail=__version__,
        python=platform.python_version(),
        torch=torch.__version__,
        device=f"{device} ({name})",
        cores=available_cores(),
        memory_gb=available_memory() / 1e9,
        extras=list_extras(),
        cache=cache_folder(),
        weights=tuple(map(_cached, cached_weights())),
    )


def _cached(found: PublishedWeights) -> CachedWeights:
    return CachedWeights(found.source, found.megabytes, found.license)


def _missing(extra: str) -> tuple[str, ...]:
    found = []
    for need in requires("vitrail") or ():
        text, _, condition = need.partition(";")
        if re.search(rf"""extra == ['"]{extra}['"]""", condition) is None:
            continue
        if "sys_platform" in condition and platform.system() == "Windows":
            continue
        name = re.match(r"[\w.-]+", text.strip())
        if name is not None and not _is_there(name[0]):
            found.append(name[0])
    return tuple(found)


def _is_there(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True
