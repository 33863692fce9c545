"""What depends on the processor, on processors that are pretended."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial

import pytest
import torch

from tests.material import ROOT
from tests.predictors import make
from tests.shelf import refusal
from vitrail.machine import ASSUMED, processor_words
from vitrail.models import parse
from vitrail.models.layers.linear import _ONEDNN, linear
from vitrail.predictor import Predictor
from vitrail.training.optimization.precision import autocast_type

_HERE = processor_words()
_VNNI = "avx512_vnni" if "avx512_vnni" in _HERE else ""  # its sums would overflow without
PROCESSORS = {
    "AVX2": {"ATEN_CPU_CAPABILITY": "avx2", ASSUMED: "GenuineIntel avx2"},
    "AVX2 by oneDNN's limit": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
    "AVX-512 without bfloat16": {ASSUMED: f"GenuineIntel avx2 avx512f {_VNNI}"},
    "AVX-512 BF16, Intel": {ASSUMED: f"GenuineIntel avx2 avx512f avx512_bf16 {_VNNI}"},
    "AVX-512 BF16, AMD": {ASSUMED: f"AuthenticAMD avx2 avx512f avx512_bf16 {_VNNI}"},
    "not x86": {ASSUMED: ""},
}
ROOMS = (
    "tests/test_machine.py",
    "tests/test_precision.py",
    "tests/test_predictor.py",
    "tests/test_attention_products.py",
    "tests/test_run_estimate.py",
    "tests/test_recipes.py",
    "tests/models/test_linear.py",
    "tests/models/test_gelu_tanh.py",
    "tests/models/test_batched_products.py",
    "tests/deploy/backends",
    "tests/evaluation/probes/test_knn.py",
    "tests/training/optimization",
    "tests/training/checkpoints/test_run_folder.py",
    "tests/run/test_choices.py",
    "tests/faults/test_run_faults.py",
)
"""Tests of what asks the processor, or rounds as it does."""
PAGES = (
    "tests/docs/test_transcript.py",
    *(
        f"tests/docs/test_pages.py::test_a_page_runs[{page}]"
        for page in ("README", "predict", "serve", "start", "training")
    ),
)
"""The same, slow or not."""


@pytest.mark.parametrize("name", PROCESSORS)
def test_what_a_processor_lacks_is_not_taken(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in (ASSUMED, "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in PROCESSORS[name].items():
        monkeypatch.setenv(variable, value)
    halves = "BF16" in name
    chosen = autocast_type("auto", torch.device("cpu"), parse("ViT-Ti/16"))
    assert chosen == (torch.bfloat16 if halves else None)
    predictor = Predictor(make(), device="cpu")
    if not halves:
        assert "has neither AVX-512 BF16 nor AMX" in refusal(predictor.with_precision, "bfloat16")
    if not (_VNNI and "AVX-512" in name):
        assert "has no VNNI" in refusal(predictor.with_precision, "int8")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        linear(torch.randn(64, 256), torch.randn(256, 256))
    by_onednn = "mkldnn::_linear_pointwise" in {event.name for event in seen.events() or ()}
    assert by_onednn == (name == "AVX-512 BF16, AMD" and _ONEDNN)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", [*PROCESSORS, "one core"])
def test_the_rooms_that_depend_on_it_pass(name: str) -> None:
    """In a process of their own, where all of torch meets the other processor."""
    if "BF16" in name and "avx512f" not in _HERE:
        pytest.skip("this processor can't compute in bfloat16 at all")
    alone = None
    if name == "one core":
        if not hasattr(os, "sched_setaffinity"):
            pytest.skip("this system binds no process to a core")
        alone = partial(os.sched_setaffinity, 0, {min(os.sched_getaffinity(0))})
    environment = {k: v for k, v in os.environ.items() if k != "VITRAIL_SLOW"}
    environment |= PROCESSORS.get(name, {})
    rooms, pages = ROOMS, PAGES
    if "ONEDNN_MAX_CPU_ISA" in PROCESSORS.get(name, {}):  # with which OpenVINO ends in a segfault
        rooms, pages = tuple(room for room in ROOMS if "backends" not in room), PAGES[:1]
    for tests, more in ((rooms, {}), (pages, {"VITRAIL_SLOW": "1"})):
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests],
            cwd=ROOT,
            env=environment | more,
            capture_output=True,
            text=True,
            preexec_fn=alone,
        )
        assert done.returncode == 0, done.stdout[-4000:]


def test_only_one_module_asks_the_processor() -> None:
    asking = ("/proc/cpuinfo", "torch.cpu", "torch.backends.cpu", "cpuinfo", "get_cpu_capability")
    for file in (*ROOT.glob("src/**/*.py"), *ROOT.glob("benchmarks/*.py")):
        if file.name != "machine.py":
            text = file.read_text(encoding="utf-8")
            assert not [each for each in asking if each in text], file
