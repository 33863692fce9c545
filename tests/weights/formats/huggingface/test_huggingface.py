"""transformers' models are read from its own folders and written to ones that it reads."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor

from tests.parity import peers
from tests.weights.convert import named
from tests.weights.huggingface_cases import (
    CASES,
    CLIP,
    MLP,
    NAMES,
    SIZES,
    VIT,
    ask,
    ask_peer,
    assert_same,
    hf,
    make,
    read,
    recognized,
    save,
    shapes_of,
    text_sizes,
)
from vitrail.config import InputError
from vitrail.models import build
from vitrail.predictor import Predictor
from vitrail.weights.formats.format import FileFacts
from vitrail.weights.formats.huggingface.huggingface import (
    HF_CLIP,
    HF_DEIT,
    HF_DINOV2,
    HF_VIT,
    format_for,
)
from vitrail.weights.formats.huggingface.huggingface_config import (
    write_hf_config,
)
from vitrail.weights.formats.keymap import write_table
from vitrail.weights.load import load


@NAMES
def test_reads_what_transformers_writes(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    peer = make(case)
    tensors, config = save(peer, tmp_path)
    assert recognized(tensors) == [case.format]
    spec, ours, _ = read(case.format, tensors, config)
    assert spec == case.spec
    peers.assert_near(ask(spec, ours), ask_peer(case, peer), 1e-5)


@NAMES
def test_names_in_memory_read_the_same(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    peer = make(case)
    tensors, config = save(peer, tmp_path)
    memory = peer.state_dict()
    assert recognized(memory) == [case.format]
    assert_same(read(case.format, memory, config)[1], read(case.format, tensors, config)[1])
    normalize = case.format.normalize
    assert_same(normalize(normalize(memory)), normalize(memory))


@NAMES
def test_writes_what_transformers_reads(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    peer = make(case)
    tensors, config = save(peer, tmp_path / "theirs")
    spec, ours, left_out = read(case.format, tensors, config)
    assert format_for(spec) is case.format
    written = case.format.denormalize(write_table(case.format.table(spec), ours), spec)
    # All that was read is there again, bit by bit, under the names that are on disk.
    there = case.format.denormalize(case.format.normalize(tensors), spec)
    assert_same(written, {key: there[key] for key in there if key.partition("[")[0] not in left_out
                          and not left_out.get(f"{key}[query]")})  # fmt: skip
    folder = tmp_path / "ours"
    folder.mkdir()
    save_file(written, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(write_hf_config(spec)))
    assert write_hf_config(spec)["architectures"] == [case.model]
    kind = getattr(hf, case.model)
    again, report = kind.from_pretrained(folder, output_loading_info=True)
    unread = ("mask_token", "register_tokens", "post_layernorm.weight", "post_layernorm.bias")
    assert all(key.endswith(unread) for key in report["missing_keys"])
    assert not report["unexpected_keys"]
    assert torch.equal(ask_peer(case, again.eval()), ask_peer(case, peer))
    assert (
        case.format.infer(
            shapes_of(case.format.normalize(written)), FileFacts(write_hf_config(spec))
        )
        == spec
    )


def test_images_are_cut_to_whole_patches(tmp_path: Path) -> None:
    """As SigLIP's of 384 pixels are, by patches of 14."""
    save(hf.SiglipVisionModel(hf.SiglipVisionConfig(**{**MLP, "image_size": 38})), tmp_path)
    said = {"size": {"height": 38, "width": 38}, "resample": 3}
    said |= {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(said))
    assert "38x38 are cut to their middle 32x32" in str(load(str(tmp_path)).provenance)
    predictor = Predictor.load(str(tmp_path))
    whole = torch.randint(256, (38, 38, 3), dtype=torch.uint8)  # so that nothing is resized
    prepared = predictor.prepare(Image.fromarray(whole.numpy()))
    assert torch.equal(prepared, whole[3:35, 3:35])
    assert predictor.run_features(prepared[None]).shape == (1, 48)


def test_the_processor_that_keeps_shapes_has_a_patch_budget(tmp_path: Path) -> None:
    """SigLIP 2's has a budget of patches for images of any shape."""
    save(make(CASES["siglip 2"]), tmp_path)
    said = {"max_num_patches": 16, "patch_size": 8, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({**said, "resample": 2}))
    found = load(str(tmp_path)).preprocess
    assert found is not None
    assert (found.patches, found.patch_size, found.size, found.fit) == (16, 8, (32, 32), "stretch")


def test_a_vit_on_disk_has_the_old_names(tmp_path: Path) -> None:
    tensors, config = save(make(CASES["vit"]), tmp_path)
    spec, ours, left_out = read(HF_VIT, tensors, config)
    assert left_out == {}
    assert write_table(HF_VIT.table(spec), ours).keys() == tensors.keys()
    assert "vit.encoder.layer.1.attention.attention.query.weight" in tensors
    assert "vit.encoder.layer.1.intermediate.dense.bias" in tensors


def test_a_whole_clip_leaves_the_text_tower_out(tmp_path: Path) -> None:
    config = hf.CLIPConfig(vision_config=MLP, text_config=text_sizes(), projection_dim=6)
    peer = peers.randomize(hf.CLIPModel(config), torch.float32)
    tensors, saved = save(peer, tmp_path)
    assert recognized(tensors) == [HF_CLIP]
    tensors["vision_model.embeddings.position_ids"] = torch.arange(17)[None]
    spec, ours, left_out = read(HF_CLIP, tensors, saved)
    assert spec == CLIP
    assert (
        left_out.pop("vision_model.embeddings.position_ids") == "the positions' numbers, no weights"
    )
    assert set(left_out.values()) == {"the text tower"}
    assert {"logit_scale", "text_projection.weight"} <= left_out.keys()
    assert len(left_out) + len(peer.vision_model.state_dict()) + 1 == len(peer.state_dict())
    with torch.no_grad():
        theirs = peer.get_image_features(peers.images(spec, torch.float32))
    theirs = theirs if isinstance(theirs, Tensor) else theirs.pooler_output
    peers.assert_near(ask(spec, ours), theirs, 1e-5)


def test_what_pre_training_alone_uses_is_left_out(tmp_path: Path) -> None:
    tensors, config = save(make(CASES["dinov2"]), tmp_path)
    reason = "used by pre-training only"
    assert read(HF_DINOV2, tensors, config)[2] == {"embeddings.mask_token": reason}
    model = hf.ViTForMaskedImageModeling(hf.ViTConfig(**MLP, encoder_stride=8))
    spec, _, left_out = read(HF_VIT, model.state_dict(), MLP)
    assert spec == replace(VIT, classes=0)
    assert set(left_out) == {"embeddings.mask_token", "decoder.0.weight", "decoder.0.bias"}
    assert set(left_out.values()) == {reason}


def test_a_model_type_of_another_family_is_refused() -> None:
    model = hf.ViTForImageClassification(hf.ViTConfig(**SIZES))
    with pytest.raises(InputError, match="model_type 'vit_rope' is not among"):
        read(HF_VIT, model.state_dict(), {**SIZES, "model_type": "vit_rope"})


def test_a_deit_without_classifiers_gives_its_features() -> None:
    model = peers.randomize(hf.DeiTModel(hf.DeiTConfig(**MLP)), torch.float32)
    assert recognized(model.state_dict()) == [HF_DEIT]
    spec, ours, left_out = read(HF_DEIT, model.state_dict(), MLP)
    assert spec == replace(VIT, classes=0, distilled=True)
    assert set(left_out) == {"pooler.dense.weight", "pooler.dense.bias"}
    x = peers.images(spec, torch.float32)
    with torch.no_grad():
        theirs = model(x).last_hidden_state[:, :2].mean(1)
    peers.assert_near(ask(spec, ours), theirs, 1e-5)


def test_an_unread_pooler_is_left_out() -> None:
    tensors = make(CASES["vit"]).state_dict()
    tensors["vit.pooler.dense.weight"] = torch.zeros(48, 48)
    spec, _, left_out = read(HF_VIT, tensors, MLP)
    assert spec == VIT
    assert left_out == {"vit.pooler.dense.weight": "a pooler, which no classifier reads"}


def test_without_a_config_the_model_is_asked_for() -> None:
    """ViT's usual epsilon in transformers is 1e-12; no tensor says so."""
    with torch.device("meta"):
        tensors = write_table(HF_VIT.table(VIT), dict(build(VIT).named_parameters()))
    shapes = shapes_of(tensors)
    with pytest.raises(InputError, match=r"no config\.json beside the file: its heads, epsilon"):
        HF_VIT.infer(shapes, FileFacts())
    assert HF_VIT.infer(shapes, named(VIT)) == VIT
    side, patch = VIT.image[0], VIT.patch[0]
    name = f"ViT/{patch}@{side},depth={VIT.depth},width={VIT.width},heads=2,mlp={VIT.mlp}"
    other = HF_VIT.infer(shapes, named(f"{name},norm_eps=1e-5,activation=gelu-tanh"))
    assert other == replace(VIT, heads=2, norm_eps=1e-5, activation="gelu-tanh")
    usual = HF_VIT.infer(shapes, named(name))
    assert usual == replace(VIT, heads=2, norm_eps=1e-12, activation="gelu")
