"""transformers' ViTMAE with its decoder: read, written, and kept by our own folder."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.parity import peers
from vitrail.config import InputError
from vitrail.models import ViT
from vitrail.models.pretraining.masked import MaskedAutoencoder
from vitrail.models.pretraining.masking import gather_patches, sample_masking
from vitrail.models.pretraining.mim import MaskConfig
from vitrail.weights.adapt import adapt_checkpoint
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.conversion.convert import convert
from vitrail.weights.load import load, read_checkpoint
from vitrail.weights.model_folder import load_folder, save_folder

hf = peers.load("transformers")
OPTIONS: dict[str, Any] = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "image_size": 32,
    "patch_size": 8,
    "decoder_hidden_size": 16,
    "decoder_num_hidden_layers": 3,
    "decoder_num_attention_heads": 2,
    "decoder_intermediate_size": 64,
}


def make(**options: Any) -> Any:
    model = hf.ViTMAEForPreTraining(hf.ViTMAEConfig(**{**OPTIONS, **options}))
    return peers.randomize(model, torch.float32, seed=3)


def rebuild(checkpoint: Checkpoint) -> MaskedAutoencoder:
    encoder = checkpoint.build()
    assert isinstance(encoder, ViT)
    assert checkpoint.decoder is not None
    return checkpoint.decoder.build(encoder)


@torch.no_grad()
def predict_both(theirs: Any, ours: MaskedAutoencoder) -> tuple[Tensor, Tensor]:
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    masking = sample_masking(torch.arange(2), (4, 4), MaskConfig(ratio=0.75))
    noise = torch.zeros(2, 16).scatter(1, masking.chosen, 1.0) + torch.arange(16) / 100
    output = theirs(images, noise=noise)
    return gather_patches(output.logits, masking.chosen), ours(images, masking)


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("own", [True, False], ids=["MAE's positions", "others"])
def test_read_written_and_kept(normalized: bool, own: bool, tmp_path: Path) -> None:
    theirs = make(norm_pix_loss=normalized)
    if own:
        plain = MaskedAutoencoder.positions  # a function of the grid alone
        model = rebuild(_read(theirs, tmp_path / "first"))
        model.table = None
        fixed = plain(model, (4, 4), torch.empty(1, 16))
        theirs.decoder.decoder_pos_embed.data = fixed[None]
    checkpoint = _read(theirs, tmp_path / "theirs")
    assert checkpoint.decoder is not None
    assert ("table" in checkpoint.decoder.tensors) != own
    expected = "normalized-pixels" if normalized else "pixels"
    assert checkpoint.decoder.facts.target == expected
    assert checkpoint.decoder.facts.pixels == "input"
    assert checkpoint.provenance is not None
    assert checkpoint.provenance.changes == ()
    wanted, found = predict_both(theirs, rebuild(checkpoint))
    peers.assert_near(found, wanted, 1e-5, "decoder")

    convert(str(tmp_path / "theirs"), tmp_path / "own", "vitrail")
    assert convert(str(tmp_path / "own"), tmp_path / "again", "hf").lost == ()
    again = hf.ViTMAEForPreTraining.from_pretrained(tmp_path / "again").eval()
    state = again.state_dict()
    assert state.keys() == theirs.state_dict().keys()
    assert all(torch.equal(state[key], value) for key, value in theirs.state_dict().items())
    assert again.config.norm_pix_loss == normalized


def _read(model: Any, folder: Path) -> Checkpoint:
    model.save_pretrained(folder)
    return read_checkpoint(str(folder))


FACEBOOK = [
    (r"^decoder\.decoder_(embed|norm|pred|pos_embed)", r"decoder_\1"),
    (r"^decoder\.mask_token", "mask_token"),
    (r"^decoder\.decoder_layers\.", "decoder_blocks."),
    (r"^vit\.layers\.", "blocks."),
    (r"^vit\.embeddings\.cls_token", "cls_token"),
    (r"^vit\.embeddings\.position_embeddings", "pos_embed"),
    (r"^vit\.embeddings\.patch_embeddings\.projection", "patch_embed.proj"),
    (r"^vit\.layernorm", "norm"),
    (r"layernorm_before", "norm1"),
    (r"layernorm_after", "norm2"),
    (r"attention\.o_proj", "attn.proj"),
]


def test_facebookresearch_names_are_the_same_decoder(tmp_path: Path) -> None:
    theirs = make(layer_norm_eps=1e-6, decoder_num_attention_heads=16)  # as all published
    named: dict[str, Tensor] = {}
    state = theirs.state_dict()
    for key, value in state.items():
        new = key
        for pattern, replacement in FACEBOOK:
            new = re.sub(pattern, replacement, new)
        if ".q_proj." in key:
            parts = [state[key.replace("q_proj", f"{part}_proj")] for part in "qkv"]
            named[new.replace("attention.q_proj", "attn.qkv")] = torch.cat(parts)
        elif "_proj." not in key or "o_proj" in key:
            named[new] = value
    torch.save(named, tmp_path / "mae.pth")
    spec = "ViT/8@32,depth=2,width=48,heads=4,mlp=96,activation=gelu,classes=0"
    found = read_checkpoint(str(tmp_path / "mae.pth"), model=spec)
    wanted, predicted = predict_both(theirs, rebuild(found))
    peers.assert_near(predicted, wanted, 1e-5, "decoder")


def test_a_new_task_fits_the_decoder_or_leaves_it(tmp_path: Path) -> None:
    checkpoint = _read(make(), tmp_path)
    larger = adapt_checkpoint(checkpoint, image=(48, 64))
    assert larger.decoder is not None
    assert larger.decoder.tensors["table"].shape == (1 + 6 * 8, 16)
    rebuild(larger)
    assert adapt_checkpoint(checkpoint, patch=(4, 4)).decoder is None
    assert adapt_checkpoint(checkpoint, channels=1).decoder is None


def test_a_damaged_decoder_is_refused(tmp_path: Path) -> None:
    checkpoint = _read(make(), tmp_path / "theirs")
    convert(str(tmp_path / "theirs"), tmp_path / "own", "vitrail")
    assert load(tmp_path / "own").model.spec == checkpoint.spec
    record = tmp_path / "own" / "model.json"
    text = re.sub(r',\s*"checksum": "\w+"', "", record.read_text())
    record.write_text(text.replace('"depth": 3', '"depth": 4'))
    with pytest.raises(InputError, match="the decoder's weights do not fit"):
        load_folder(tmp_path / "own")


def test_transformers_reads_no_decoder_of_raw_pixels(tmp_path: Path) -> None:
    checkpoint = _read(make(), tmp_path / "theirs")
    assert checkpoint.decoder is not None
    facts = replace(checkpoint.decoder.facts, pixels="raw")
    save_folder(
        replace(checkpoint, decoder=replace(checkpoint.decoder, facts=facts)), tmp_path / "raw"
    )
    assert load_folder(tmp_path / "raw").decoder.facts == facts  # type: ignore[union-attr]
    lost = convert(str(tmp_path / "raw"), tmp_path / "again", "hf").lost
    assert lost == ("that the decoder predicts raw pixels",)
