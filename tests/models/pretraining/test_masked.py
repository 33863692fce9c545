"""Encoders in pre-training: what they see, what is learned, what is refused."""

import pytest
import torch
from torch import Tensor, nn

from vitrail.config import InputError
from vitrail.models import ViT, build, parse
from vitrail.models.pretraining.masked import MaskedAutoencoder, MaskedViT
from vitrail.models.pretraining.masking import Masking, sample_masking
from vitrail.models.pretraining.mim import DecoderConfig, MaskConfig, encoder_spec
from vitrail.models.vit import ViT as ViTClass

NAME = "ViT/4@16,depth=2,width=16,heads=2,mlp=24"
LIGHT = DecoderConfig(depth=1, width=8, heads=2)


def make_encoder(name: str = NAME) -> ViT:
    encoder = build(encoder_spec(parse(name)))
    assert isinstance(encoder, ViTClass)
    return encoder


def draw(ratio: float = 0.5, count: int = 3) -> Masking:
    return sample_masking(torch.arange(count), (4, 4), MaskConfig(ratio=ratio))


def shake(module: nn.Module) -> None:
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3)


def test_predictions_are_of_the_chosen_patches() -> None:
    model, images = MaskedViT(make_encoder(), "color"), torch.randn(3, 3, 16, 16)
    assert model(images, draw()).shape == (3, 8, 512)
    model = MaskedAutoencoder(make_encoder(), "normalized-pixels", LIGHT)
    assert model(images, draw(0.75)).shape == (3, 12, 48)


def gradient(loss: Tensor, of: Tensor) -> Tensor:
    (found,) = torch.autograd.grad(loss, of)
    return found


@pytest.mark.parametrize("kind", ["masked-patches", "mae"])
def test_hidden_patches_have_no_say(kind: str) -> None:
    """What is masked, or left out, can't reach a prediction; what is seen does."""
    images = torch.randn(3, 3, 16, 16, requires_grad=True)
    masking = sample_masking(torch.arange(3), (4, 4), MaskConfig(ratio=0.75, masked=1, replaced=0))
    if kind == "mae":
        model = MaskedAutoencoder(make_encoder(), "pixels", LIGHT)
    else:
        model = MaskedViT(make_encoder(), "pixels")
    shake(model)
    reached = gradient(model(images, masking).sum(), images).abs().sum(1)
    patches = reached.unflatten(2, (4, 4)).unflatten(1, (4, 4)).sum(dim=(2, 4)).flatten(1)
    for image in range(3):
        assert patches[image, masking.chosen[image]].eq(0).all()
        assert patches[image, masking.seen[image]].gt(0).all()


def test_gradients_reach_everything_that_is_learnt() -> None:
    models = [
        MaskedViT(make_encoder(), "colors"),
        MaskedAutoencoder(make_encoder(), "normalized-pixels", LIGHT),
        MaskedViT(make_encoder("R+ViT/2@16,depth=1,width=16,heads=2,mlp=24"), "color"),
    ]
    for model in models:
        shake(model)
        grid = model.spec.grid
        masking = sample_masking(torch.arange(3), grid, MaskConfig(ratio=0.5))
        model(torch.randn(3, 3, 16, 16), masking).square().sum().backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.abs().sum() > 0, name


def test_groups_put_the_rest_after_the_encoder() -> None:
    model = MaskedAutoencoder(make_encoder(), "pixels", LIGHT)
    assert model.layer_of("encoder.embedding.weight") == 0
    assert model.layer_of("encoder.blocks.1.mlp.norm.weight") == 2
    assert model.layer_of("blocks.0.mlp.norm.weight") == model.layer_of("mask") == 3
    names = [name for group in model.parameter_groups() for name in group["names"]]
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())


def test_checkpointing_changes_nothing() -> None:
    model, images = MaskedAutoencoder(make_encoder(), "pixels", LIGHT), torch.randn(3, 3, 16, 16)
    shake(model)
    found = []
    for checkpointing in (False, True):
        model.checkpointing = model.encoder.checkpointing = checkpointing
        model.zero_grad()
        model(images, draw()).square().sum().backward()
        found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


def test_autocast_adds_up_the_decoders_blocks_in_float32() -> None:
    model = MaskedAutoencoder(make_encoder(), "pixels", DecoderConfig(depth=2, width=8, heads=2))
    seen: list[torch.dtype] = []
    for block in (*model.encoder.blocks, *model.blocks):
        block.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].dtype))
    with torch.autocast("cpu", torch.bfloat16):
        model(torch.randn(3, 3, 16, 16), draw())
    assert seen == [torch.float32] * 4
    seen.clear()
    model.bfloat16()(torch.randn(3, 3, 16, 16).bfloat16(), draw())
    assert seen == [torch.bfloat16] * 4


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("R+ViT/2@16,depth=1,width=16,heads=2,mlp=24", "a stem sees the whole image"),
        ("ViT/4@16,depth=1,width=16,heads=2,mlp=24,attention=axial,pool=gap", "whole rows"),
        (
            "ViT/4@16,depth=1,width=16,heads=2,mlp=24,position=relative,position_at=shared",
            "in every layer",
        ),
    ],
)
def test_mae_refuses_what_needs_every_patch(name: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        MaskedAutoencoder(make_encoder(name), "pixels", LIGHT)


@pytest.mark.parametrize(("width", "heads"), [(10, 2), (8, 3), (4, 1)])
def test_a_decoder_of_odd_width_is_refused_by_its_name(width: int, heads: int) -> None:
    said = f"mim.decoder.width {width} "
    with pytest.raises(InputError, match=said):
        MaskedAutoencoder(make_encoder(), "pixels", DecoderConfig(width=width, heads=heads))


def test_a_resnet_has_no_patches() -> None:
    with pytest.raises(InputError, match="BiT-R50x1 has no patch tokens"):
        encoder_spec(parse("BiT-R50x1"))
