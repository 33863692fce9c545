"""Settings of masked image modeling: what they make of a spec, and which a task does not read."""

import numpy as np
import pytest

from vitrail.config import InputError
from vitrail.models.pretraining.mim import (
    DecoderConfig,
    MaskConfig,
    MIMConfig,
    check_mim,
    count_chosen,
    target_size,
)

DEFAULTS = MIMConfig()


@pytest.mark.parametrize(
    ("task", "mim", "said"),
    [
        ("classification", MIMConfig(target="pixels"), "mim.* requires --task masked-patches"),
        ("mae", MIMConfig(mask=MaskConfig(masked=0.5)), "mim.mask.masked and mim.mask.replaced"),
        ("mae", MIMConfig(mask=MaskConfig(replaced=0.0)), "require --task masked-patches"),
        ("masked-patches", MIMConfig(decoder=DecoderConfig(depth=2)), "requires --task mae"),
    ],
)
def test_settings_that_nothing_reads_are_refused(task: str, mim: MIMConfig, said: str) -> None:
    with pytest.raises(InputError) as caught:
        check_mim(mim, task)
    assert said in str(caught.value)
    check_mim(DEFAULTS, task)


def test_settings_that_a_task_reads_are_taken() -> None:
    check_mim(MIMConfig(mask=MaskConfig(masked=1, replaced=0), target="colors"), "masked-patches")
    check_mim(MIMConfig(mask=MaskConfig(ratio=0.75), decoder=DecoderConfig(depth=2)), "mae")
    check_mim(MIMConfig(target="pixels", distance="absolute"), "mae")


@pytest.mark.parametrize("target", ["color", "colors"])
def test_colors_have_no_distance(target: str) -> None:
    with pytest.raises(InputError, match=rf"mim\.distance is not used with target {target}, only"):
        MIMConfig(target=target, distance="absolute")  # pyright: ignore[reportArgumentType]


def test_outputs_and_what_has_none() -> None:
    assert target_size("color", (16, 16), 3) == 512  # Appendix B.1.2
    assert target_size("colors", (16, 16), 3) == 16 * 512  # Appendix B.1.2
    assert target_size("pixels", (16, 16), 3) == 768
    with pytest.raises(InputError, match="sides 4 divides, not 14x14"):
        target_size("colors", (14, 14), 3)
    with pytest.raises(InputError, match="requires 3 channels, the model has 1"):
        target_size("color", (16, 16), 1)


@pytest.mark.parametrize(("ratio", "side", "unit"), [(0.6, 14, 2), (0.6, 12, 2), (0.6, 10, 1)])
def test_rounding_up_is_simmims(ratio: float, side: int, unit: int) -> None:
    """Its data_simmim.py takes the ceiling: 30 of 49 squares, not 29."""
    units = (side // unit) ** 2
    chosen = count_chosen((side, side), MaskConfig(ratio=ratio, unit=unit, rounding="up"))
    assert chosen == int(np.ceil(units * ratio)) * unit**2
    assert count_chosen((14, 14), MaskConfig(ratio=0.6, unit=2)) == 29 * 4


@pytest.mark.parametrize("patches", [4, 6, 9, 10, 14, 21, 49, 50, 196, 257])
def test_rounding_up_is_maes(patches: int) -> None:
    """It keeps int(L * (1 - ratio)) patches, so that the others are rounded up."""
    chosen = count_chosen((1, patches), MaskConfig(ratio=0.75, rounding="up"))
    assert patches - chosen == int(patches * (1 - 0.75))


@pytest.mark.parametrize("target", ["color", "colors"])
def test_colors_are_of_the_raw_image(target: str) -> None:
    with pytest.raises(InputError, match=rf"mim\.pixels is not used with target {target}, only"):
        MIMConfig(target=target, pixels="input")  # pyright: ignore[reportArgumentType]
