"""Rotary positions against complex numbers, and what they promise: only differences count."""

import cmath
import math

import pytest
import torch
from torch import Tensor

from vitrail.config import InputError
from vitrail.models import ViTSpec, build, parse
from vitrail.models.noise import keyed_noise
from vitrail.models.positions.rotary import RotaryPositions, Rotation
from vitrail.models.pretraining.mim import DecoderConfig, decoder_spec
from vitrail.models.vit import ViT

BASE = "ViT/8@32x48,depth=2,width=48,heads=3,mlp=32,position=none,classes=5"
GRID = (4, 6)
SIZE = 16


def spec_of(options: str) -> ViTSpec:
    spec = parse(f"{BASE},{options}")
    assert isinstance(spec, ViTSpec)
    return spec


def angles(options: str, row: int, column: int) -> list[float]:
    """Give the angle of each pair of channels of the patch in a row and column."""
    y, x = float(row), float(column)
    theta = 100.0
    if "centered" in options:
        y, x = 2 * (y + 0.5) / GRID[0] - 1, 2 * (x + 0.5) / GRID[1] - 1
        periods = [theta ** (2 * band / 8) for band in range(4)]
        return [2 * math.pi * place / period for place in (y, x) for period in periods]
    if "offset" in options:
        y, x = y + 1, x + 1
    if "grid" in options:
        y, x = y / GRID[0] * 5, x / GRID[1] * 5
    places = (x, y) if "xy" in options else (y, x)
    return [place * theta ** (-band / 4) for place in places for band in range(4)]


@pytest.mark.parametrize(
    "options",
    [
        "rotary=axial",
        "rotary=axial,rotary_grid=5,rotary_offset=1.0",
        "rotary=axial-xy,registers=2",
        "rotary=axial-xy,rotary_offset=1.0,rotary_grid=5",
        "rotary=centered,pool=gap",
    ],
)
def test_pairs_of_channels_turn_as_complex_numbers(options: str) -> None:
    spec = spec_of(f"{options},rotary_theta=100.0")
    x = torch.randn(2, 3, spec.tokens, SIZE, dtype=torch.float64)
    rotation = RotaryPositions(spec)(GRID, x)[1]
    found = rotation.turn(x)
    assert torch.equal(found[:, :, : spec.prefix], x[:, :, : spec.prefix])
    first = slice(0, 8) if "centered" in options else slice(0, None, 2)
    second = slice(8, None) if "centered" in options else slice(1, None, 2)
    for row, column in ((0, 0), (1, 4), (3, 5)):
        token = spec.prefix + row * GRID[1] + column
        turn = torch.tensor([cmath.rect(1, angle) for angle in angles(options, row, column)])
        expected = torch.complex(x[:, :, token, first], x[:, :, token, second]) * turn
        result = torch.complex(found[:, :, token, first], found[:, :, token, second])
        torch.testing.assert_close(result, expected, rtol=0, atol=2e-6)


def logits(rotation: Rotation, spec: ViTSpec) -> Tensor:
    query, key = torch.randn(2, 1, 3, 1, SIZE, generator=torch.Generator().manual_seed(0))
    turned = [rotation.turn(each.expand(-1, -1, spec.tokens, -1)) for each in (query, key)]
    return turned[0] @ turned[1].mT


@pytest.mark.parametrize("options", ["rotary=axial", "rotary=axial-xy", "rotary=mixed"])
def test_attention_depends_on_differences_alone(options: str) -> None:
    """Equal queries and keys everywhere: a patch sees its neighbors as any other patch does."""
    model = build(f"{BASE},{options},pool=gap")
    assert isinstance(model, ViT)
    assert model.rotary is not None
    rotation = model.rotary(GRID, torch.zeros(1))[0]
    found = logits(rotation, model.spec).unflatten(-1, GRID).unflatten(-3, GRID)
    torch.testing.assert_close(found[:, :, 0, 0, 1, 2], found[:, :, 2, 3, 3, 5])
    torch.testing.assert_close(found[:, :, 1, 1, 0, 4], found[:, :, 3, 2, 2, 5])
    assert not torch.allclose(found[:, :, 0, 0, 1, 2], found[:, :, 0, 0, 2, 1])


def test_centered_positions_are_the_same_at_every_resolution() -> None:
    """The middle of the image has angle 0; coordinates span -1 to 1 whatever the grid."""
    spec = spec_of("rotary=centered,rotary_theta=100.0,pool=gap")
    small, large = (RotaryPositions(spec)((n, n), torch.zeros(1))[0] for n in (5, 9))
    torch.testing.assert_close(small.sin[12], torch.zeros(SIZE))
    torch.testing.assert_close(large.sin[40], torch.zeros(SIZE))


def test_mixed_frequencies_start_as_turned_axial_ones() -> None:
    model = build(f"{BASE},rotary=mixed,rotary_theta=10.0", seed=1)
    assert isinstance(model, ViT)
    assert model.rotary is not None
    frequencies = model.rotary.frequencies
    assert frequencies.shape == (2, 2, 3, 8)
    sizes = frequencies.square().sum(0).sqrt()
    expected = torch.tensor([10 ** (-band / 4) for band in range(4)]).repeat(2)
    torch.testing.assert_close(sizes, expected.expand_as(sizes))
    inner = (frequencies[..., :4] * frequencies[..., 4:]).sum(0)
    torch.testing.assert_close(inner, torch.zeros_like(inner), atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("rotary_theta=100.0", "rotary_theta requires rotary positions"),
        ("rotary=centered,rotary_grid=4", "require rotary=axial or axial-xy"),
        ("rotary=axial,heads=8", "heads whose size 4 divides, got 6"),
        ("rotary=spiral", "expected 'none', 'axial', 'axial-xy', 'centered' or 'mixed'"),
        ("unpooled_class_token=true", "require pool=gap, map or probe"),
        ("pool_heads=2", "requires pool=map"),
        ("register_position=true", "requires registers and position=learned-1d"),
        ("qkv_bias=false,key_bias=false", "key_bias=false requires qkv_bias=true"),
        ("distilled=true,last_norm=pooled", "requires pool=token and last_norm=tokens"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(f"{BASE},{options}")
    assert said in str(caught.value)


def test_mae_and_axial_attention_have_no_rotary_positions() -> None:
    with pytest.raises(InputError, match="not rotary ones"):
        parse("AxialViT-B/16,rotary=axial")
    with pytest.raises(InputError, match="positions act in every layer"):
        decoder_spec(spec_of("rotary=axial"), DecoderConfig())


NOISY = "rotary=centered,rotary_theta=100.0,rotary_shift=0.2,rotary_jitter=1.5,rotary_rescale=2.0"


def coordinates(options: str) -> tuple[Tensor, Tensor]:
    """Read each image's coordinates (images, rows, columns, 2) back from their angles."""
    rotary = RotaryPositions(spec_of(options)).train()
    x = torch.zeros(400, 25, 48, dtype=torch.float64)
    torch.manual_seed(0)
    rotation = rotary(GRID, x)[0]
    turns = torch.atan2(rotation.sin, rotation.cos)[:, 0, 1:, [3, 7]]  # the slowest of y and x
    slowest = 100.0 ** (2 * 3 / 8)
    return turns.unflatten(1, GRID) * slowest / (2 * math.pi), rotation.cos


def test_noise_of_coordinates_is_dinov3s() -> None:
    """Each image's are shifted, jittered per axis and rescaled, within the settings' ranges."""
    found, _ = coordinates(NOISY)
    y, x = found[:, :, 0, 0], found[:, 0, :, 1]
    scale_y, scale_x = (y[:, 1] - y[:, 0]) / (2 / 4), (x[:, 1] - x[:, 0]) / (2 / 6)
    shift_y, shift_x = y.mean(1) / scale_y, x.mean(1) / scale_x
    for shift in (shift_y, shift_x):
        assert shift.abs().max() <= 0.2
        assert shift.min() < -0.15 < 0.15 < shift.max()
    for scale in (scale_y, scale_x):
        assert 1 / 3 <= scale.min() < 0.5
        assert 2 < scale.max() <= 3
    ratio = scale_y / scale_x
    assert 1 / 1.5**2 <= ratio.min() < 0.7 < 1.4 < ratio.max() <= 1.5**2
    only, _ = coordinates("rotary=centered,rotary_theta=100.0,rotary_rescale=2.0")
    assert torch.allclose(only[:, 0, 0, 0] / -0.75, only[:, 0, 0, 1] / (-5 / 6))


def test_noise_of_coordinates_is_an_images_own_and_only_in_training() -> None:
    model = build(f"{BASE},{NOISY}", seed=0)
    x, own = torch.randn(4, 3, 32, 48), torch.arange(4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3, generator=torch.Generator().manual_seed(1))
        quiet = model.eval()(x)
        assert torch.equal(quiet, model(x))
        with keyed_noise(model.train(), own):
            together = model(x)
        assert (together - quiet).abs().max() > 1e-3
        for index in range(4):
            with keyed_noise(model, own[index : index + 1]):
                alone = model(x[index : index + 1])
            torch.testing.assert_close(alone[0], together[index], rtol=1e-4, atol=1e-5)
    assert parse(str(model.spec)) == model.spec


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("rotary=axial,rotary_shift=0.1", "require rotary=centered"),
        ("rotary=centered,rotary_jitter=0.5", "rotary_jitter must be at least 1"),
        ("rotary=none,rotary_rescale=2.0", "rotary_rescale requires rotary positions"),
    ],
)
def test_refused_noise(options: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        spec_of(options)
