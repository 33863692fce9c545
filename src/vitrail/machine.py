"""What a process may use: cores and memory, by affinity, cgroup limits and the local world size.

And what its processor can do: all other code asks here. VITRAIL_PROCESSOR replaces the answers, in
subprocesses too, as tests do; `ONEDNN_MAX_CPU_ISA` limits them as it limits oneDNN.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
from collections.abc import Iterator
from contextlib import suppress
from math import ceil
from pathlib import Path

_CGROUPS, _OWN, _MEMORY, _PROCESSOR = (
    Path(place)
    for place in ("/sys/fs/cgroup", "/proc/self/cgroup", "/proc/meminfo", "/proc/cpuinfo")
)
_ASSUMED = 8 * 2**30  # bytes, where nothing tells
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # glibc's numbers of its parameters
_KEPT, _LARGEST_KEPT = 2**28, 2**25  # bytes; glibc takes no more for the second
KEEP_FREED_MEMORY = (
    f"glibc.malloc.trim_threshold={_KEPT}:glibc.malloc.mmap_threshold={_LARGEST_KEPT}:"
    "glibc.malloc.hugetlb=1"
)
"""The same as `keep_freed_memory`, and huge pages, as GLIBC_TUNABLES of a new process."""


def available_cores() -> int:
    """Count the cores for this process: a fair part of those that its machine or container has."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    for folder in _folders("cpu"):
        limit = _read(folder / "cpu.max", 2)
        old = _read(folder / "cpu.cfs_quota_us") + _read(folder / "cpu.cfs_period_us")
        quota, period = limit or (old if len(old) == 2 else (0, 0))
        if quota > 0 and period > 0:
            cores = min(cores, ceil(quota / period))
    return max(1, cores // _local_world_size())


def available_memory() -> int:
    """Count the bytes that this process can still have, what files may give back included."""
    free = _ASSUMED
    if _MEMORY.exists():
        lines = dict(line.split(":", 1) for line in _MEMORY.read_text().splitlines())
        free = int(lines["MemAvailable"].split()[0]) * 1024  # kB
    for folder in _folders("memory"):
        names = (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        )
        for limit, usage in ((_read(folder / a), _read(folder / b)) for a, b in names):
            if limit and usage:
                free = min(free, max(0, limit[0] - usage[0] + _reclaimable(folder)))
    return free // _local_world_size()


def keep_freed_memory() -> None:
    """Let this process keep large pieces of memory that it frees, up to 256 MB, for the next ones.

    glibc returns them to the system, and the pages of new ones take up to a fifth of a model's
    time. This is for a command's own process, not for one of the user's.
    """
    with suppress(OSError, AttributeError):  # where the allocator is not glibc's
        allocator = ctypes.CDLL(None)
        allocator.mallopt(_MMAP_THRESHOLD, _LARGEST_KEPT)
        allocator.mallopt(_TRIM_THRESHOLD, _KEPT)


def return_freed_memory() -> None:
    """Let this process return large pieces of memory as soon as it frees them, from 1 MiB on.

    Else glibc keeps more and more of them, for each thread, and what a process holds of a sharded
    model grows to as much as of a whole one.
    """
    with suppress(OSError, AttributeError):  # where the allocator is not glibc's
        ctypes.CDLL(None).mallopt(_MMAP_THRESHOLD, 1 << 20)


ASSUMED = "VITRAIL_PROCESSOR"
"""The variable that names the vendor and flags to go by, such as `GenuineIntel avx512f`."""
_LIMITS = (
    *("SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX2_VNNI_2", "AVX512_CORE", "AVX512_CORE_VNNI"),
    *("AVX512_CORE_BF16", "AVX512_CORE_FP16", "AVX10_1_512"),
)
"""Values of ONEDNN_MAX_CPU_ISA up to those that leave nothing below out, the least first."""
_LEAST_LIMIT = {
    "avx512f": "AVX512_CORE",
    "avx512_vnni": "AVX512_CORE_VNNI",
    "avx512_bf16": "AVX512_CORE_BF16",
}
"""The least limit that allows a flag; AMX needs more than all in `_LIMITS`."""


def prefers_onednn() -> bool:
    """Tell whether oneDNN multiplies float32 matrices faster than MKL: on AMD's with AVX-512.

    MKL takes its fast kernels on Intel's processors alone.
    """
    return {"AuthenticAMD", "avx512f"} <= processor_words()


def has_bfloat16() -> bool:
    """Tell whether the processor multiplies bfloat16 numbers itself (AVX-512-BF16 or AMX).

    Others take up to 60 times as long in it as in float32.
    """
    return not {"avx512_bf16", "amx_bf16"}.isdisjoint(processor_words())


def has_vnni() -> bool:
    """Tell whether the processor adds products of int8 without overflow (AVX-512 VNNI)."""
    return "avx512_vnni" in processor_words()


def processor_words() -> frozenset[str]:
    """Return the vendor and flags of the processor; none where the system does not list them."""
    if (assumed := os.environ.get(ASSUMED)) is not None:
        return _split(assumed)
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA") or os.environ.get("DNNL_MAX_CPU_ISA") or ""
    return _limited_words(_PROCESSOR, limit.upper())


def processor_name() -> str:
    """Return the model of the processor, as the system names it."""
    return _read_processor(_PROCESSOR).get("model name") or platform.processor()


@functools.cache
def _split(words: str) -> frozenset[str]:
    return frozenset(words.split())


@functools.cache
def _limited_words(listing: Path, limit: str) -> frozenset[str]:
    found = _read_processor(listing)
    words = _split(f"{found.get('vendor_id', '')} {found.get('flags', '')}")
    if limit not in _LIMITS:
        return words
    allowed = _LIMITS[: _LIMITS.index(limit) + 1]
    lost = {flag for flag, least in _LEAST_LIMIT.items() if least not in allowed}
    return words - lost - {"amx_bf16"}


@functools.cache
def _read_processor(listing: Path) -> dict[str, str]:
    """Read the lines of the first processor."""
    try:
        text = listing.read_text(encoding="utf-8")
    except OSError:  # not Linux
        return {}
    lines = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    return {key.strip(): value.strip() for key, _, value in lines}


def _local_world_size() -> int:
    """Count the processes that torchrun started on this machine."""
    text = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, int(text)) if text.isdecimal() else 1


def _folders(controller: str) -> Iterator[Path]:
    """Give the cgroup folders that limit this process, of version 1 and 2, from its own upward."""
    try:
        lines = _OWN.read_text().splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if number == "0" or controller in names.split(","):
            root = _CGROUPS if number == "0" else _CGROUPS / controller
            own = root / path.lstrip("/")
            yield from (place for place in (own, *own.parents) if place.is_relative_to(root))


def _read(file: Path, count: int = 1) -> tuple[int, ...]:
    """Read so many numbers; nothing where the file has none, as in `max 100000`."""
    try:
        words = file.read_text().split()
    except OSError:
        return ()
    whole = [int(word) for word in words[:count] if word.lstrip("-").isdecimal()]
    return tuple(whole) if len(whole) == count else ()


def _reclaimable(folder: Path) -> int:
    """Count the bytes of files that the kernel keeps in a cgroup's memory, but can drop."""
    try:
        rows = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return 0
    return int(rows.get("total_inactive_file") or rows.get("inactive_file") or 0)
