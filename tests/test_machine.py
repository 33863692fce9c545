"""Cores and memory of containers, by files as the kernel writes them."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from vitrail import machine
from vitrail.data.loader import Loader, LoaderConfig


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a machine of 16 cores and 64 GB, without limits."""
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda pid: set(range(16)), raising=False)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    for name, place in {"_CGROUPS": "fs", "_OWN": "own", "_MEMORY": "meminfo"}.items():
        monkeypatch.setattr(machine, name, tmp_path / place)
    (tmp_path / "own").write_text("0::/\n")
    (tmp_path / "meminfo").write_text("MemTotal: 70000000 kB\nMemAvailable:   62500000 kB\n")
    return tmp_path


def write(place: Path, **files: str) -> None:
    place.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (place / name.replace("__", ".")).write_text(text + "\n")


def test_without_limits(kernel: Path) -> None:
    assert machine.available_cores() == 16
    assert machine.available_memory() == 64_000_000_000


def test_a_container_of_cgroup_2(kernel: Path) -> None:
    write(
        kernel / "fs",
        memory__max="8000000000",
        memory__current="3000000000",
        cpu__max="250000 100000",
    )
    write(kernel / "fs", memory__stat="anon 1\ninactive_file 1000000000")
    assert machine.available_cores() == 3
    assert machine.available_memory() == 6_000_000_000


def test_the_tightest_of_nested_groups_counts(kernel: Path) -> None:
    (kernel / "own").write_text("0::/a/b\n")
    write(kernel / "fs" / "a" / "b", memory__max="max", memory__current="5", cpu__max="max 100000")
    write(kernel / "fs" / "a", memory__max="1000", memory__current="400", cpu__max="100000 100000")
    assert machine.available_cores() == 1
    assert machine.available_memory() == 600


def test_a_container_of_cgroup_1(kernel: Path) -> None:
    (kernel / "own").write_text("4:memory:/box\n3:cpu,cpuacct:/box\n0::/\n")
    write(
        kernel / "fs" / "memory" / "box",
        memory__limit_in_bytes="9000",
        memory__usage_in_bytes="2000",
    )
    write(kernel / "fs" / "cpu" / "box", cpu__cfs_quota_us="400000", cpu__cfs_period_us="100000")
    write(kernel / "fs" / "cpu", cpu__cfs_quota_us="-1", cpu__cfs_period_us="100000")
    assert machine.available_cores() == 4
    assert machine.available_memory() == 7000


def test_processes_of_one_machine_share_it(kernel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "5")
    assert machine.available_cores() == 3
    assert machine.available_memory() == 12_800_000_000
    assert Loader(str, [], LoaderConfig()).workers == 3
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "100")
    assert machine.available_cores() == 1


PROCESSORS = {
    "AVX2": ("GenuineIntel fpu avx2", (False, False, False)),
    "AVX2, AMD": ("AuthenticAMD fpu avx2", (False, False, False)),
    "AVX-512": ("GenuineIntel avx2 avx512f avx512_vnni", (False, False, True)),
    "AVX-512, AMD": ("AuthenticAMD avx2 avx512f avx512_vnni avx512_bf16", (True, True, True)),
    "AMX": ("GenuineIntel avx512f avx512_vnni avx512_bf16 amx_bf16 amx_tile", (False, True, True)),
    "arm64": ("", (False, False, False)),
}
"""Vendor and flags; whether oneDNN is preferred, and bfloat16 and int8 are computed quickly."""


def ask() -> tuple[bool, bool, bool]:
    return machine.prefers_onednn(), machine.has_bfloat16(), machine.has_vnni()


@pytest.fixture
def listing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let the system's list of processors be a file that is not there yet."""
    monkeypatch.setattr(machine, "_PROCESSOR", tmp_path / "cpuinfo")
    for name in (machine.ASSUMED, "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "cpuinfo"


def write_processor(listing: Path, words: str, name: str = "x") -> None:
    vendor, _, flags = words.partition(" ")
    one = f"processor\t: 0\nvendor_id\t: {vendor}\nmodel name\t: {name}\nflags\t\t: {flags}\n"
    listing.write_text(one + "\n" + one)


@pytest.mark.parametrize(("words", "expected"), PROCESSORS.values(), ids=PROCESSORS)
def test_what_a_processor_can_do(
    listing: Path, words: str, expected: tuple[bool, bool, bool]
) -> None:
    write_processor(listing, words, "Some Model 7")
    assert ask() == expected
    assert machine.processor_name() == "Some Model 7"


def test_without_a_list_of_processors_nothing_is_assumed(listing: Path) -> None:
    assert not listing.exists()
    assert ask() == (False, False, False)
    assert machine.processor_name() == platform.processor()


@pytest.mark.parametrize(("words", "expected"), PROCESSORS.values(), ids=PROCESSORS)
def test_another_processor_can_be_assumed(
    listing: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: str,
    expected: tuple[bool, bool, bool],
) -> None:
    write_processor(listing, "AuthenticAMD avx512f avx512_vnni amx_bf16")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    monkeypatch.setenv(machine.ASSUMED, words)
    assert ask() == expected


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        ("AVX2", (False, False, False)),
        ("avx512_core", (True, False, False)),
        ("AVX512_CORE_VNNI", (True, False, True)),
        ("AVX512_CORE_BF16", (True, True, True)),
        ("AVX512_CORE_AMX", (True, True, True)),
        ("ALL", (True, True, True)),
        ("", (True, True, True)),
    ],
)
def test_a_limit_of_onednn_is_one_of_ours(
    listing: Path,
    monkeypatch: pytest.MonkeyPatch,
    limit: str,
    expected: tuple[bool, bool, bool],
) -> None:
    write_processor(listing, "AuthenticAMD avx512f avx512_vnni avx512_bf16")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
    assert ask() == expected
    write_processor(amx := listing.with_name("amx"), "GenuineIntel avx512f amx_bf16")
    monkeypatch.setattr(machine, "_PROCESSOR", amx)
    assert machine.has_bfloat16() == (limit in ("AVX512_CORE_AMX", "ALL", ""))


_FAULTS = """
import resource, sys
from vitrail.machine import keep_freed_memory
if sys.argv[1] == "called":
    keep_freed_memory()
def use():
    parts = [bytearray(12 << 20) for _ in range(4)]
use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator")
def test_freed_memory_is_kept() -> None:
    def faults(how: str, **more: str) -> int:
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("GLIBC", "MALLOC"))}
        command = (sys.executable, "-c", _FAULTS, how)
        ran = subprocess.run(
            command, env=environment | more, capture_output=True, text=True, check=True
        )
        return int(ran.stdout)

    # Huge pages make few faults of many, so the usual way is taken without them.
    pages = 5 * 4 * (12 << 20) // os.sysconf("SC_PAGE_SIZE")
    assert faults("not") > pages / 4
    assert faults("called") < pages / 100
    assert faults("not", GLIBC_TUNABLES=machine.KEEP_FREED_MEMORY) < pages / 100
