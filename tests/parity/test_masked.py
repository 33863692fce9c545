"""transformers' ViTMAE, and its ViT with mask tokens, with random weights: ours are equal."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.parity import peers
from tests.parity.transformers_models import BASE, RULES, shape
from tests.training.tasks_of import masked_image_modeling
from vitrail.data.batches import EvalBatches
from vitrail.data.datasets.open import open_data
from vitrail.data.transforms.preprocess import Preprocess
from vitrail.models import ViT
from vitrail.models.pretraining.masked import MaskedAutoencoder, MaskedViT
from vitrail.models.pretraining.masking import gather_patches, sample_masking
from vitrail.models.pretraining.mim import DecoderConfig, MaskConfig, MIMConfig
from vitrail.models.pretraining.patch_targets import make_targets, patchify, prediction_loss

hf_mae = peers.load("transformers.models.vit_mae.modeling_vit_mae")
hf_vit = peers.load("transformers.models.vit.modeling_vit")

SPEC = replace(BASE, classes=0)
LIGHT = DecoderConfig(depth=2, width=16, heads=2)
DECODER = [
    (r"^decoder\.mask_token$", "mask"),
    (r"^decoder\.decoder_embed\.", "enter."),
    (r"^decoder\.decoder_layers\.", "layers."),
    (r"^decoder\.decoder_norm\.", "norm."),
    (r"^decoder\.decoder_pred\.", "predict."),
]


@peers.PRECISIONS
def test_mae_predicts_as_transformers(dtype: torch.dtype, tolerance: float) -> None:
    config = hf_mae.ViTMAEConfig(
        **shape(SPEC),
        intermediate_size=SPEC.mlp,
        decoder_hidden_size=LIGHT.width,
        decoder_num_hidden_layers=LIGHT.depth,
        decoder_num_attention_heads=LIGHT.heads,
        decoder_intermediate_size=4 * LIGHT.width,
        norm_pix_loss=True,
        mask_ratio=0.75,
    )
    peer = peers.randomize(hf_mae.ViTMAEForPreTraining(config), dtype)
    ours = MaskedAutoencoder(ViT(SPEC), "normalized-pixels", LIGHT)
    # Which this version of transformers leaves at zero.
    positions = ours.positions(SPEC.grid, torch.empty(1, LIGHT.width, dtype=dtype))
    peer.decoder.decoder_pos_embed.data = positions[None]
    state = {n: t for n, t in peer.state_dict().items() if not n.endswith("decoder_pos_embed")}
    encoder = {n: t for n, t in state.items() if n.startswith("vit.")}
    decoder = {n: t for n, t in state.items() if not n.startswith("vit.")}
    translated = {f"encoder.{n}": t for n, t in peers.translate(encoder, RULES).items()}
    translated |= peers.translate(decoder, [*DECODER, *RULES])
    peers.fill(ours, translated)

    images = torch.rand(2, 3, *SPEC.image, dtype=dtype)
    corruption = sample_masking(torch.arange(2), SPEC.grid, MaskConfig(ratio=0.75))
    noise = torch.zeros(2, 16).scatter(1, corruption.chosen, 1.0) + torch.arange(16) / 100
    with torch.no_grad():
        theirs = peer(images, noise=noise)
        predictions = ours(images, corruption)
    assert theirs.mask.bool().sum() == corruption.chosen.numel()
    peers.assert_near(predictions, gather_patches(theirs.logits, corruption.chosen), tolerance)
    patches = gather_patches(patchify(images.permute(0, 2, 3, 1), SPEC.patch), corruption.chosen)
    loss = prediction_loss(
        predictions, make_targets(patches, SPEC.patch, "normalized-pixels"), "normalized-pixels"
    )
    torch.testing.assert_close(loss.mean(), theirs.loss.float(), rtol=1e-5, atol=0)


@peers.PRECISIONS
def test_masked_patches_encode_as_transformers(dtype: torch.dtype, tolerance: float) -> None:
    config = hf_vit.ViTConfig(**shape(SPEC), intermediate_size=SPEC.mlp, qkv_bias=True)
    peer = hf_vit.ViTModel(config, add_pooling_layer=False, use_mask_token=True)
    peers.randomize(peer, dtype)
    ours = MaskedViT(ViT(SPEC), "color")
    translated = peers.translate(peer.state_dict(), RULES)
    mask = translated.pop("embeddings.mask_token")
    translated = {f"encoder.{name}": tensor for name, tensor in translated.items()}
    head = torch.randn(512, SPEC.width).to(dtype)
    translated |= {"mask": mask, "predict.weight": head, "predict.bias": torch.ones(512)}
    peers.fill(ours, translated)

    images = torch.randn(2, 3, *SPEC.image, dtype=dtype)
    corruption = sample_masking(torch.arange(2), SPEC.grid, MaskConfig(masked=1, replaced=0))
    hidden = torch.zeros(2, 16).scatter(1, corruption.chosen, 1.0).bool()
    with torch.no_grad():
        tokens = peer(images, bool_masked_pos=hidden).last_hidden_state[:, 1:]
        expected = gather_patches(tokens, corruption.chosen) @ head.T + 1
        peers.assert_near(ours(images, corruption), expected, tolerance)


IMAGENET = Preprocess(
    size=(32, 32),
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
    interpolation="bicubic",
    fit="crop",
)
"""What every published MAE has; no channel's std is another's."""


def losses_of(mim: MIMConfig, theirs: Any, **settings: Any) -> tuple[Tensor, Tensor]:
    """Return our loss and a peer's of the same images, at the peer's own predictions."""
    batch = EvalBatches(open_data("shapes", split="val"), IMAGENET, batch=4)[0]  # type: ignore[arg-type]
    noise = np.random.default_rng(0).integers(0, 256, batch.images.shape, np.uint8)
    batch = replace(batch, images=batch.images // 2 + torch.from_numpy(noise) // 2)
    task = masked_image_modeling(str(SPEC), IMAGENET, mim=mim, **settings)
    example = task.prepare(batch)
    predictions, loss = theirs(example.inputs, sample_masking(example.keys, SPEC.grid, mim.mask))
    ours = task.losses(lambda *_: predictions, example)  # type: ignore[arg-type]
    return ours.mean(), loss.float()


@torch.no_grad()
@pytest.mark.parametrize("normalized", [True, False])
def test_maes_loss_is_of_the_image_that_mean_and_std_normalized(normalized: bool) -> None:
    config = hf_mae.ViTMAEConfig(
        **shape(SPEC),
        intermediate_size=SPEC.mlp,
        decoder_hidden_size=16,
        decoder_num_hidden_layers=1,
        decoder_num_attention_heads=2,
        decoder_intermediate_size=64,
        norm_pix_loss=normalized,
    )
    peer = peers.randomize(hf_mae.ViTMAEForPreTraining(config), torch.float32)

    def predict(inputs: Tensor, masking: Any) -> tuple[Tensor, Tensor]:
        noise = torch.zeros(4, 16).scatter(1, masking.chosen, 1.0) + torch.arange(16) / 100
        found = peer(inputs, noise=noise)
        assert found.mask.sum() == masking.chosen.numel()
        return gather_patches(found.logits, masking.chosen), found.loss

    mask = MaskConfig(ratio=0.75, rounding="up")
    target = "normalized-pixels" if normalized else "pixels"
    mim = MIMConfig(mask=mask, target=target, pixels="input")
    ours, theirs = losses_of(mim, predict, task="mae")
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=0)
    raw, _ = losses_of(replace(mim, pixels="raw"), predict, task="mae")
    assert abs(raw / theirs - 1) > 1e-3, "of the raw image it is another"


@torch.no_grad()
def test_simmims_loss_is_of_the_image_that_mean_and_std_normalized() -> None:
    config = hf_vit.ViTConfig(**shape(SPEC), intermediate_size=SPEC.mlp, encoder_stride=8)
    peer = peers.randomize(hf_vit.ViTForMaskedImageModeling(config), torch.float32)

    def predict(inputs: Tensor, masking: Any) -> tuple[Tensor, Tensor]:
        hidden = torch.zeros(4, 16).scatter(1, masking.chosen, 1.0).bool()
        found = peer(inputs, bool_masked_pos=hidden)
        patches = patchify(found.reconstruction.permute(0, 2, 3, 1), SPEC.patch).flatten(2)
        return gather_patches(patches, masking.chosen), found.loss

    mask = MaskConfig(ratio=0.6, masked=1, replaced=0, unit=2, rounding="up")
    mim = MIMConfig(mask=mask, target="pixels", distance="absolute", pixels="input")
    ours, theirs = losses_of(mim, predict)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=0)
