"""Tiny models of every kind to look into."""

from typing import Any

import torch
from torch import Tensor, nn

import vitrail
from vitrail.models import BiT, ViT

PLAIN = "ViT/8@32,depth=3,width=24,heads=3,mlp=32,classes=5"
AXIAL = "AxialViT/8@16x24,depth=2,width=24,heads=2,mlp=32,classes=5,pool=gap"
MODELS = {
    "plain": PLAIN,
    "token-gap": f"{PLAIN},pool=token-gap",
    "registers": f"{PLAIN},registers=2,qk_norm=true,layer_scale=0.1",
    "eva": f"{PLAIN},rotary=axial,key_bias=false,sub_norm=both,pool=gap,unpooled_class_token=true",
    "mixed": f"{PLAIN},rotary=mixed,qk_norm=true,norm_place=post,norm=rms",
    "beit": f"{PLAIN},position=relative-2d,position_at=every-layer,key_bias=false",
    "relative": f"{PLAIN},position=relative,position_at=shared",
    "every-layer": f"{PLAIN},position=relative,position_at=every-layer,pool=gap",
    "pooling": f"{PLAIN},pool=map",
    "axial": AXIAL,
    "hybrid": "R+ViT/2@32,depth=2,width=24,heads=3,mlp=32,classes=5",
}


def make(name: str) -> ViT | BiT:
    model = vitrail.build(MODELS.get(name, name))
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model.eval()


def images(model: ViT | BiT, count: int = 2) -> Tensor:
    return torch.randn(count, 3, *model.spec.image)


def compile_whole(model: nn.Module) -> nn.Module:
    compiled: Any = torch.compile(model, backend="eager")
    return compiled


def compile_in_place(model: nn.Module) -> nn.Module:
    model.compile(backend="eager")
    return model


def compile_blocks(model: nn.Module) -> nn.Module:
    for block in model.get_submodule("blocks").children():
        block.compile(backend="eager")
    return model
