"""Batches of images of different sizes: each image's result is the one that it has alone."""

import pytest
import torch
from torch import Tensor

from vitrail.config import InputError
from vitrail.models import PatchBatch, ViT, build, pack_images, parse

SIZES = [(32, 32), (16, 48), (48, 24)]
TINY = "ViT/8@32,depth=2,width=32,heads=2,mlp=48,classes=5"
KINDS = [
    "pool=gap,registers=1,position_resize=timm",
    "pool=gap,pool_prefix=true,registers=2,class_position=false",
    "pool=map,position=sincos-2d",
    "position=learned-2d,position_at=every-layer",
    "position=relative-2d,position_at=every-layer,unpooled_class_token=true,pool=gap",
    "position=none,rotary=axial,rotary_grid=4",
    "rotary=centered,rotary_theta=100.0",
    "rotary=mixed,position=none,pool=gap",
    "position=relative-mlp,position_at=shared,registers=2",
    "position=factorized,position_resize=timm-square,pool=gap",
    "distilled=true",
    "pool=token-gap",
]


def images() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(3, *size, generator=generator) for size in SIZES]


def make(options: str) -> ViT:
    model = build(f"{TINY},{options}", seed=0)
    assert isinstance(model, ViT)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.2, generator=generator)
    return model.eval()


@pytest.mark.parametrize("options", KINDS)
def test_each_image_as_alone(options: str) -> None:
    model = make(options)
    batch = pack_images(images(), (8, 8))
    with torch.no_grad():
        together = model(batch)
        alone = torch.cat([model(image[None]) for image in images()])
    assert (together - alone).abs().max() <= 2e-5 * alone.abs().max()


def test_padding_changes_nothing() -> None:
    model = make(KINDS[0])
    short, padded = (pack_images(images(), (8, 8), length) for length in (None, 40))
    noise = torch.where(padded.valid[..., None], padded.patches, 1e3)
    places = torch.where(padded.valid[..., None], padded.places, 99)
    with torch.no_grad():
        wanted = model.features(short)
        found = model.features(PatchBatch(noise, places, padded.valid))
    torch.testing.assert_close(found, wanted)


def test_gradients_are_those_of_single_images() -> None:
    model = make(KINDS[2])
    model(pack_images(images(), (8, 8))).square().sum().backward()
    found = {name: weight.grad.clone() for name, weight in model.named_parameters()}  # pyright: ignore[reportOptionalMemberAccess]
    model.zero_grad()
    sum(model(image[None]).square().sum() for image in images()).backward()  # pyright: ignore[reportAttributeAccessIssue]
    for name, weight in model.named_parameters():
        assert weight.grad is not None
        torch.testing.assert_close(found[name], weight.grad, rtol=1e-4, atol=1e-5)


def test_patches_in_any_order() -> None:
    """A patch's place, not its number, says where it stands."""
    model = make("rotary=axial,pool=gap")
    batch = pack_images(images()[:1], (8, 8))
    order = torch.randperm(16, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        shuffled = model(PatchBatch(*(part[:, order] for part in batch)))
        torch.testing.assert_close(shuffled, model(batch))


def test_checkpointed_blocks_give_the_same() -> None:
    model = make(KINDS[4]).train()
    batch = pack_images(images(), (8, 8))
    wanted = model(batch)
    model.checkpointing = True
    torch.testing.assert_close(model(batch), wanted)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("AxialViT/8@32,depth=1,width=32,heads=2,mlp=48", "without a stem, axial attention"),
        (f"{TINY},position=relative,position_at=shared", "without a stem, axial attention"),
        (TINY.replace("/8", "/16"), r"expected \(batch, length, 768\) patches, got \(3, 18, 192\)"),
    ],
)
def test_refusals(name: str, message: str) -> None:
    model = build(parse(name))
    with pytest.raises(InputError, match=message):
        model(pack_images(images(), (8, 8)))


def test_an_image_without_patches_is_refused() -> None:
    batch = pack_images(images(), (8, 8))
    with pytest.raises(InputError, match="each image of a batch needs at least one patch"):
        make(KINDS[0])(batch._replace(valid=torch.zeros_like(batch.valid)))
    with pytest.raises(InputError, match="more than the length 4"):
        pack_images(images(), (8, 8), 4)
    with pytest.raises(InputError, match="does not split into 8x8 patches"):
        pack_images([torch.zeros(3, 8, 12)], (8, 8))


def test_a_batch_moves_whole_and_keeps_its_places_whole_numbers() -> None:
    batch = pack_images([torch.randn(3, 16, 24), torch.randn(3, 8, 8)], (8, 8))
    there = batch.to("meta", torch.bfloat16)
    assert isinstance(there, PatchBatch)
    assert {each.device.type for each in there} == {"meta"}
    assert [each.dtype for each in there] == [torch.bfloat16, torch.int64, torch.bool]
    assert all(torch.equal(*pair) for pair in zip(batch.to("cpu"), batch, strict=True))
