"""One small model of each kind of block, attention, norm, position, pooling and stem."""

_TINY = "ViT/8@32,{}width=48,heads=4,mlp=64,classes=5"
_SHAPE = "depth=2,width=48,heads=4,mlp=64"
_OPTIONS = [
    "block=parallel,layer_scale=0.1",
    "attention=differential",
    "block=parallel,attention=differential,qk_norm=true",
    "branches=2",
    "key_heads=1,rotary=axial",
    "key_heads=2,key_heads_ends=1,depth=3",
    "position=relative-mlp,position_at=every-layer,norm_place=post",
    "position=relative-mlp,position_at=shared,position_mlp=24,registers=2",
    "position=relative-2d,position_at=every-layer,key_bias=false",
    "rotary=axial-xy,rotary_offset=1.0,sub_norm=both,activation=swiglu",
    "rotary=centered,rotary_theta=100.0,norm=rms,qk_norm=true,registers=2",
    "rotary=mixed,position=none,last_norm=pooled,pool=gap,unpooled_class_token=true",
    "position=factorized,position_resize=timm-square,patch_norm=true,dense_bias=false,norm=rms",
    "pool=probe,qkv_bias=false,position=sincos-2d-mae,activation=geglu",
    "pool=map,pool_mlp=24,pool_heads=2,unpooled_class_token=true,pool_prefix=true",
    "pool=token-gap,registers=2,register_position=true,activation=quick-gelu",
    "distilled=true,pre_norm=true,patch_bias=false",
]
KINDS = [f"{_TINY.format('' if 'depth' in each else 'depth=2,')},{each}" for each in _OPTIONS]
_STEMS = ["mobileclip", "conv,stages=1-2"]
KINDS += [f"Hybrid/2@32,stem={stem},stem_width=32,{_SHAPE},classes=5" for stem in _STEMS]
"""Names of models for images of 32x32."""
