"""augment.py: AugReg's levels as published, and what no record may hold."""

from typing import Any, get_args

import pytest

from vitrail.config import InputError
from vitrail.data.transforms.augment import AUGMENTS, Augment, Crop, RandAugment, parse_augment

AUGREG = {  # big_vision configs/vit_i1k.py, RANDAUG_DEF and MIXUP_DEF: layers, magnitude, mixup
    "none": (None, None, 0.0),
    "light1": (2, 0, 0.0),
    "light2": (2, 10, 0.2),
    "medium1": (2, 15, 0.2),
    "medium2": (2, 15, 0.5),
    "strong1": (2, 20, 0.5),
    "strong2": (2, 20, 0.8),
}


def test_levels_are_augregs() -> None:
    assert list(AUGMENTS) == list(AUGREG)


@pytest.mark.parametrize("name", AUGREG)
def test_level(name: str) -> None:
    layers, magnitude, mixup = AUGREG[name]
    augment = parse_augment(name)
    assert (augment.crop, augment.area, augment.flip) == ("inception", (0.05, 1.0), 0.5)
    assert augment.mixup == mixup
    assert augment.mixes == (mixup > 0)
    if layers is None:
        assert augment.randaugment is None
    else:
        expected = RandAugment(layers=layers, magnitude=magnitude or 0, operations="big_vision")
        assert augment.randaugment == expected
    others = (augment.brightness, augment.contrast, augment.saturation, augment.hue, augment.erase)
    assert set(others) == {0.0}
    assert augment.cutmix == 0.0


def test_cutmix_mixes_too() -> None:
    assert Augment(cutmix=1.0).mixes
    assert not Augment().mixes


def test_unknown_level_is_named_with_what_there_is() -> None:
    with pytest.raises(InputError, match=r"did you mean 'medium2' or 'medium1'\?$"):
        parse_augment("medium3")
    with pytest.raises(InputError, match=r"unknown augmentation 'x'.*none, light1.*strong2"):
        parse_augment("x")


@pytest.mark.parametrize(
    "wrong",
    [
        {"area": (0.0, 1.0)},
        {"area": (0.5, 0.4)},
        {"area": (0.5, 1.1)},
        {"ratio": (0.0, 1.0)},
        {"ratio": (2.0, 1.0)},
        {"pad": -0.1},
        {"flip": 1.5},
        {"flip": -0.5},
        {"erase": 1.01},
        {"brightness": -0.1},
        {"contrast": -0.1},
        {"saturation": -0.1},
        {"hue": -0.1},
        {"hue": 0.51},
        {"mixup": -1.0},
        {"mixup": float("inf")},
        {"cutmix": -1.0},
        {"cutmix": float("nan")},
    ],
    ids=str,
)
def test_refused(wrong: dict[str, Any]) -> None:
    (name,) = wrong
    with pytest.raises(InputError, match=rf"^augment\.{name}(\[.\] must|: exp| must)"):
        Augment(**wrong)


@pytest.mark.parametrize("wrong", [{"layers": 0}, {"magnitude": -1}, {"magnitude": 31}], ids=str)
def test_refused_randaugment(wrong: dict[str, Any]) -> None:
    ((name, value),) = wrong.items()
    with pytest.raises(
        InputError, match=rf"^augment\.randaugment\.{name} must be .*, got {value}$"
    ):
        RandAugment(**wrong)


@pytest.mark.parametrize("crop", get_args(Crop))
@pytest.mark.parametrize(
    ("setting", "used"),
    [
        ({"area": (0.2, 1.0)}, ("inception", "area")),
        ({"ratio": (0.5, 2.0)}, ("inception", "area")),
        ({"pad": 0.25}, ("pad",)),
    ],
    ids=str,
)
def test_settings_of_another_crop_are_refused(
    crop: Crop, setting: dict[str, Any], used: tuple[Crop, ...]
) -> None:
    (name,) = setting
    if crop in used:
        assert getattr(Augment(crop=crop, **setting), name) == setting[name]
        return
    said = f"^augment.{name} is not used with crop {crop}, only with {' or '.join(used)}; "
    with pytest.raises(InputError, match=said):
        Augment(crop=crop, **setting)


@pytest.mark.parametrize(
    "right", [{"area": (1.0, 1.0)}, {"flip": 0.0}, {"erase": 1.0}, {"hue": 0.5}], ids=str
)
def test_limits_are_allowed(right: dict[str, Any]) -> None:
    for name, value in right.items():
        assert getattr(Augment(**right), name) == value


def test_timms_magnitude_ends_at_10() -> None:
    assert RandAugment(operations="timm", magnitude=10).magnitude == 10
    with pytest.raises(InputError, match=r"magnitude must be in \[0, 10\] with .* timm, got 27$"):
        RandAugment(operations="timm", magnitude=27)
