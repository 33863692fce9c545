"""Tiny models of images and text, as transformers and open_clip publish them."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.parity import peers

ENCODER = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
ENCODER |= {"intermediate_size": 64}
WORDS = ("a", "cat", "dog", "photo", "of", "red", "house", "the", "small", "truck")


def letters() -> list[str]:
    """Give the 256 symbols that byte-level BPE writes bytes as."""
    from tokenizers.pre_tokenizers import ByteLevel

    return sorted(ByteLevel.alphabet())


def bpe(suffix: str, base: list[str]) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Make a vocabulary that has each word of WORDS as one token, and the merges that build it."""
    vocabulary = {token: number for number, token in enumerate(base)}
    merges: list[tuple[str, str]] = []
    for word in WORDS:
        parts = [*word[:-1], word[-1] + suffix]
        while len(parts) > 1:
            pair = parts[0], parts[1]
            if pair not in merges:
                merges.append(pair)
            parts = ["".join(pair), *parts[2:]]
            vocabulary.setdefault(parts[0], len(vocabulary))
    return vocabulary, merges


@cache
def clip_tokenizer() -> Any:
    """Build transformers' CLIP tokenizer with a tiny vocabulary; the end-of-text ID is largest."""
    base = [*letters(), *(f"{letter}</w>" for letter in letters())]
    vocabulary, merges = bpe("</w>", base)
    for token in ("<|startoftext|>", "<|endoftext|>"):
        vocabulary[token] = len(vocabulary)
    return peers.load("transformers").CLIPTokenizer(vocab=vocabulary, merges=merges)


@cache
def siglip2_tokenizer() -> Any:
    """Build transformers' SigLIP 2 tokenizer (Gemma's kind) with a tiny vocabulary."""
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    base = [*special, *(f"<0x{byte:02X}>" for byte in range(256))]
    base += ["▁", *(chr(code) for code in range(33, 127))]
    vocabulary, merges = bpe("", base)
    made = peers.load("transformers").Siglip2Tokenizer(
        vocab=vocabulary,
        merges=merges,
        padding_side="right",
        model_input_names=["input_ids"],
        model_max_length=64,
    )
    from tokenizers.processors import TemplateProcessing

    # As published: no token before a text, <eos> after it.
    end = TemplateProcessing(single="$A <eos>", special_tokens=[("<eos>", 1)])
    made.backend_tokenizer.post_processor = end
    return made


def make_clip(folder: Path, *, image: Mapping[str, Any] = {}, text: Mapping[str, Any] = {}) -> Any:
    """Save a tiny CLIP with tokenizer and preprocessing; return transformers' model."""
    hf, tokenizer = peers.load("transformers"), clip_tokenizer()
    vision = {**ENCODER, "image_size": 32, "patch_size": 8, **image}
    words = {**ENCODER, "vocab_size": len(tokenizer), "max_position_embeddings": 77, **text}
    words.setdefault("eos_token_id", tokenizer.eos_token_id)
    config = hf.CLIPConfig(text_config=words, vision_config=vision, projection_dim=24)
    processor = hf.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size=32)
    return _save(hf.CLIPModel(config), folder, tokenizer, processor)


def make_siglip(folder: Path, *, second: bool = False) -> Any:
    """Save a tiny SigLIP, or a SigLIP 2 of any aspect ratio; return transformers' model."""
    hf, tokenizer = peers.load("transformers"), siglip2_tokenizer()
    name = "Siglip2" if second else "Siglip"
    size = {"num_patches": 16, "patch_size": 8} if second else {"image_size": 32, "patch_size": 8}
    words = {**ENCODER, "vocab_size": len(tokenizer), "max_position_embeddings": 64}
    words |= {"projection_size": 32}
    config = getattr(hf, f"{name}Config")(text_config=words, vision_config={**ENCODER, **size})
    kind = getattr(hf, f"{name}ImageProcessor")
    options = (
        {"patch_size": 8, "max_num_patches": 16}
        if second
        else {"size": {"height": 32, "width": 32}}
    )
    return _save(getattr(hf, f"{name}Model")(config), folder, tokenizer, kind(**options))


def _save(model: Any, folder: Path, tokenizer: Any, processor: Any) -> Any:
    model.eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name == "logit_scale":
                parameter.fill_(1.5)
            elif name == "logit_bias":
                parameter.fill_(-2.0)
            else:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    processor.save_pretrained(folder)
    return model


def to_open_clip(model: Any, folder: Path) -> None:
    """Write a CLIP of transformers as open_clip names it, with its config and tokenizer."""
    theirs: dict[str, Tensor] = {k: v.detach() for k, v in model.state_dict().items()}
    ours: dict[str, Tensor] = {"logit_scale": theirs["logit_scale"]}
    embeddings = "vision_model.embeddings"
    ours["visual.class_embedding"] = theirs[f"{embeddings}.class_embedding"]
    ours["visual.conv1.weight"] = theirs[f"{embeddings}.patch_embedding.weight"]
    ours["visual.positional_embedding"] = theirs[f"{embeddings}.position_embedding.weight"]
    ours["visual.proj"] = theirs["visual_projection.weight"].T.contiguous()
    ours["token_embedding.weight"] = theirs["text_model.embeddings.token_embedding.weight"]
    ours["positional_embedding"] = theirs["text_model.embeddings.position_embedding.weight"]
    ours["text_projection"] = theirs["text_projection.weight"].T.contiguous()
    norms = {"visual.ln_pre": "vision_model.pre_layrnorm"}
    norms |= {"visual.ln_post": "vision_model.post_layernorm"}
    norms |= {"ln_final": "text_model.final_layer_norm"}
    layers = {"ln_1": "layer_norm1", "ln_2": "layer_norm2", "attn.out_proj": "self_attn.out_proj"}
    layers |= {"mlp.c_fc": "mlp.fc1", "mlp.c_proj": "mlp.fc2"}
    for room, other in (("visual.", "vision_model"), ("", "text_model")):
        for layer in range(2):
            new, old = f"{room}transformer.resblocks.{layer}", f"{other}.encoder.layers.{layer}"
            norms |= {f"{new}.{a}": f"{old}.{b}" for a, b in layers.items()}
            for leaf in ("weight", "bias"):
                parts = [theirs[f"{old}.self_attn.{part}_proj.{leaf}"] for part in "qkv"]
                ours[f"{new}.attn.in_proj_{leaf}"] = torch.cat(parts)
    for new, old in norms.items():
        for leaf in ("weight", "bias"):
            ours[f"{new}.{leaf}"] = theirs[f"{old}.{leaf}"]
    folder.mkdir()
    save_file({k: v.contiguous() for k, v in ours.items()}, folder / "open_clip_model.safetensors")
    sides = {"width": 32, "layers": 2}
    vision = {**sides, "head_width": 8, "image_size": 32, "patch_size": 8}
    text = {**sides, "heads": 4, "context_length": 77, "vocab_size": len(clip_tokenizer())}
    config = {"embed_dim": 24, "quick_gelu": True, "vision_cfg": vision, "text_cfg": text}
    mean, std = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
    both = {"model_cfg": config, "preprocess_cfg": {"mean": mean, "std": std}}
    (folder / "open_clip_config.json").write_text(json.dumps(both))
    clip_tokenizer().save_pretrained(folder)
