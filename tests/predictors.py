"""Tiny checkpoints for predictors."""

import torch

from vitrail.data.transforms.preprocess import Preprocess
from vitrail.models import build, parse
from vitrail.weights.loaded import LoadedModel

NAMES = ("cat", "dog", "hen", "owl", "pig", "rat", "yak")
PREPROCESS = Preprocess(
    size=(32, 32), mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.25), interpolation="bicubic", fit="crop"
)
TINY = parse("ViT/8@32,depth=2,width=32,heads=2,mlp=64,classes=7")

FUSED = (
    "", ",activation=gelu", ",activation=quick-gelu", ",activation=swiglu", ",qkv_bias=false",
    ",pool=map", ",pool=gap,registers=2", ",layer_scale=0.5,qk_norm=true",
    ",position=relative,position_at=shared", ",attention=axial,pool=gap,position=learned-2d",
    ",rotary=axial,key_bias=false,sub_norm=both,activation=swiglu", ",norm=rms,norm_place=post",
    ",position=relative-2d,position_at=every-layer", ",patch_norm=true,dense_bias=false",
    ",rotary=mixed,last_norm=pooled,pool=map,unpooled_class_token=true,pool_prefix=true",
)  # fmt: skip
"""Ends of the names of models with all kinds of layers."""


def make(spec: str | None = None, preprocess: Preprocess | None = PREPROCESS) -> LoadedModel:
    model = build(TINY if spec is None else parse(spec))
    for parameter in model.parameters():  # a head of zeros would answer nothing
        torch.nn.init.normal_(parameter, std=0.2)
    names = NAMES if model.spec.classes == len(NAMES) else None
    return LoadedModel(model, names, preprocess, None)
