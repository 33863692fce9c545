"""How many images go through a model at a time."""

from typing import Any

import pytest
import torch

from vitrail.models import parse
from vitrail.models.cost.total import cost_of
from vitrail.models.pretraining.mim import MaskConfig, MIMConfig
from vitrail.training import memory
from vitrail.training.memory import choose_micro, is_out_of_memory
from vitrail.training.peft import TuneConfig

CPU = torch.device("cpu")
SPEC = parse("ViT-S/16")


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize(
    ("fit", "most", "expected"),
    [
        (0.5, 64, 1),
        (1, 64, 1),
        (3.5, 64, 2),
        (37, 64, 32),
        (63, 64, 32),
        (64, 64, 64),
        (90, 48, 48),
    ],
)
def test_half_of_the_free_memory_is_for_activations(
    monkeypatch: pytest.MonkeyPatch, fit: float, most: int, expected: int, checkpointing: bool
) -> None:
    """All images if they fit, or else a power of two."""
    cost = cost_of(SPEC)
    each = cost.checkpointed_bytes if checkpointing else cost.activation_bytes
    monkeypatch.setattr(memory, "available_memory", lambda: 2 * fit * each)
    found = choose_micro(SPEC, most=most, checkpointing=checkpointing, device=CPU)
    assert found == expected


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"tune": TuneConfig(mode="head")}, 384),
        ({"tune": TuneConfig(mode="last", blocks=3)}, 3_713_048),
        (
            {"task": "mae", "mim": MIMConfig(mask=MaskConfig(ratio=0.75), target="pixels")},
            17_087_258,
        ),
    ],
)
def test_what_is_learnt_decides_what_fits(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], kept: int
) -> None:
    """The head keeps its 384 inputs alone; MAE's wide decoder keeps more than a small encoder."""
    monkeypatch.setattr(memory, "available_memory", lambda: 2**34)
    options: dict[str, Any] = {"most": 1 << 30, "checkpointing": False, "device": CPU}
    found = choose_micro(SPEC, **options, **settings)
    assert found <= 2**33 / (4 * kept) < 2 * found


def test_processes_of_one_machine_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = parse("ViT-H/14@1792")  # of which no machine holds a thousand
    found = []
    for processes in ("1", "8"):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", processes)
        found.append(choose_micro(spec, most=1 << 20, checkpointing=True, device=CPU))
    assert found[1] <= max(1, found[0] // 4)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (MemoryError(), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to"), True),
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried to"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("memory"), False),
    ],
)
def test_only_errors_of_memory_count_as_such(error: Exception, expected: bool) -> None:
    assert is_out_of_memory(error) == expected


def test_torch_still_says_it_in_these_words() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60)
    assert is_out_of_memory(caught.value)
