"""timm's architectures that our models reproduce, with what their tensors do not show.

Each entry of timm was compared with ours with random weights (tests/parity/test_timm_sweep.py). An
architecture that is not listed may compute something else with the same tensors, so it is refused.
"""

from __future__ import annotations

from vitrail.models.spec import Activation, ResizeRule

_GROUPS: tuple[tuple[Activation, int, str], ...] = (
    (
        "gelu",
        2,
        """
        test_vit test_vit2
        """,
    ),
    (
        "gelu",
        3,
        """
        deit_tiny_distilled_patch16_224 deit_tiny_patch16_224 test_vit3 test_vit4
        vit_pe_core_tiny_patch16_384 vit_pe_spatial_tiny_patch16_512
        vit_tiny_patch16_224 vit_tiny_patch16_384 vit_tiny_patch16_dinov3_qkvb
        vit_tiny_r_s16_p8_224 vit_tiny_r_s16_p8_384
        """,
    ),
    (
        "gelu",
        4,
        """
        vit_dpwee_patch16_reg1_gap_256 vit_dwee_patch16_reg1_gap_256
        vit_pwee_patch16_reg1_gap_256 vit_wee_patch16_reg1_gap_256
        vit_xsmall_patch16_clip_224
        """,
    ),
    (
        "gelu",
        5,
        """
        vit_dlittle_patch16_reg1_gap_256 vit_little_patch16_reg1_gap_256
        vit_little_patch16_reg4_gap_256
        """,
    ),
    (
        "gelu",
        6,
        """
        deit3_small_patch16_224 deit3_small_patch16_384 deit_small_distilled_patch16_224
        deit_small_patch16_224 flexivit_small vit_pe_core_small_patch16_384
        vit_pe_spatial_small_patch16_512 vit_small_patch14_dinov2
        vit_small_patch14_reg4_dinov2 vit_small_patch16_18x2_224 vit_small_patch16_224
        vit_small_patch16_36x1_224
        vit_small_patch16_384 vit_small_patch16_dinov3 vit_small_patch16_dinov3_qkvb
        vit_small_patch16_lingbot vit_small_patch16_rope_224
        vit_small_patch16_rope_ape_224 vit_small_patch16_rope_mixed_224
        vit_small_patch16_rope_mixed_ape_224 vit_small_patch32_224 vit_small_patch32_384
        vit_relpos_small_patch16_224 vit_relpos_small_patch16_rpn_224
        vit_small_patch8_224 vit_small_r26_s32_224 vit_small_r26_s32_384
        vit_srelpos_small_patch16_224
        """,
    ),
    (
        "gelu",
        8,
        """
        deit3_medium_patch16_224 vit_medium_patch16_clip_224 vit_medium_patch16_gap_240
        vit_medium_patch16_gap_256 vit_medium_patch16_gap_384
        vit_medium_patch16_reg1_gap_256 vit_medium_patch16_reg4_gap_256
        vit_medium_patch16_rope_reg1_gap_256 vit_medium_patch32_clip_224
        vit_mediumd_patch16_reg4_gap_256 vit_mediumd_patch16_reg4_gap_384
        vit_mediumd_patch16_rope_reg1_gap_256 vit_relpos_medium_patch16_224
        vit_relpos_medium_patch16_cls_224 vit_relpos_medium_patch16_rpn_224
        vit_srelpos_medium_patch16_224
        """,
    ),
    (
        "gelu",
        10,
        """
        vit_betwixt_patch16_gap_256 vit_betwixt_patch16_reg1_gap_256
        vit_betwixt_patch16_reg4_gap_256 vit_betwixt_patch16_reg4_gap_384
        vit_betwixt_patch16_rope_reg4_gap_256 vit_betwixt_patch32_clip_224
        """,
    ),
    (
        "gelu",
        12,
        """
        beit3_base_patch16_224 beit_base_patch16_224 beit_base_patch16_384
        beitv2_base_patch16_224 deit3_base_patch16_224 deit3_base_patch16_384
        deit_base_distilled_patch16_224 deit_base_distilled_patch16_384
        deit_base_patch16_224 deit_base_patch16_384 flexivit_base
        naflexvit_base_patch16_gap naflexvit_base_patch16_map
        naflexvit_base_patch16_par_gap naflexvit_base_patch16_parfac_gap
        vit_base_patch14_dinov2
        vit_base_patch14_reg1_tipsv2 vit_base_patch14_reg4_dinov2 vit_base_patch16_18x2_224
        vit_base_mci_224 vit_base_patch16_224 vit_base_patch16_xp_224
        vit_base_patch16_224_miil vit_base_patch16_384 vit_base_patch16_clip_224
        vit_base_patch16_clip_384 vit_base_patch16_dinov3 vit_base_patch16_dinov3_qkvb
        vit_base_patch16_lingbot vit_base_patch16_reg4_gap_256 vit_base_patch16_rope_224
        vit_base_patch16_rope_ape_224 vit_base_patch16_rope_mixed_224
        vit_base_patch16_rope_mixed_ape_224 vit_base_patch16_rope_reg1_gap_256
        vit_base_patch16_rpn_224 vit_base_patch16_siglip_224 vit_base_patch16_siglip_256
        vit_base_patch16_siglip_384 vit_base_patch16_siglip_512
        vit_base_patch16_siglip_gap_224 vit_base_patch16_siglip_gap_256
        vit_base_patch16_siglip_gap_384 vit_base_patch16_siglip_gap_512
        vit_base_patch32_224 vit_base_patch32_384 vit_base_patch32_clip_224
        vit_base_patch32_clip_256 vit_base_patch32_clip_384 vit_base_patch32_clip_448
        vit_base_patch8_224 vit_base_r26_s32_224 vit_base_r50_s16_224
        vit_base_r50_s16_384 vit_pe_core_base_patch16_224
        vit_pe_spatial_base_patch16_512 vit_relpos_base_patch16_224
        vit_relpos_base_patch16_cls_224 vit_relpos_base_patch16_clsgap_224
        vit_relpos_base_patch16_rpn_224
        """,
    ),
    (
        "gelu",
        13,
        """
        naflexvit_so150m2_patch16_reg1_gap naflexvit_so150m2_patch16_reg1_map
        vit_so150m2_patch16_reg1_gap_256 vit_so150m2_patch16_reg1_gap_384
        vit_so150m2_patch16_reg1_gap_448
        """,
    ),
    (
        "gelu",
        14,
        """
        vit_relpos_base_patch16_plus_240 vit_relpos_base_patch32_plus_rpn_256
        vit_base_patch16_plus_240 vit_base_patch16_plus_clip_240
        vit_base_patch32_plus_256 vit_so150m_patch16_reg4_gap_256
        vit_so150m_patch16_reg4_gap_384 vit_so150m_patch16_reg4_map_256
        """,
    ),
    (
        "gelu",
        16,
        """
        beit3_giant_patch14_224 beit3_giant_patch14_336 beit3_large_patch16_224
        beit_large_patch16_224 beit_large_patch16_384 beit_large_patch16_512
        beitv2_large_patch16_224 deit3_huge_patch14_224 deit3_large_patch16_224
        deit3_large_patch16_384 eva02_enormous_patch14_clip_224 eva_giant_patch14_224
        eva_giant_patch14_336 eva_giant_patch14_560 eva_giant_patch14_clip_224
        eva_large_patch14_196 eva_large_patch14_336 flexivit_large
        vit_base_patch16_gap_224 vit_giant_patch14_224 vit_giant_patch14_clip_224
        vit_giant_patch16_gap_224 vit_gigantic_patch14_224 vit_gigantic_patch14_clip_224
        vit_gigantic_patch14_clip_378 vit_huge_patch14_224 vit_huge_patch14_clip_224
        vit_huge_patch14_clip_336 vit_huge_patch14_clip_378 vit_huge_patch14_gap_224
        vit_huge_patch14_xp_224 vit_large_patch14_xp_224
        vit_huge_patch16_gap_448 vit_intern300m_patch14_448 vit_large_patch14_224
        vit_large_patch14_clip_224 vit_large_patch14_clip_336 vit_large_patch14_dinov2
        vit_large_patch14_reg1_tipsv2 vit_large_patch14_reg4_dinov2
        vit_large_patch16_224 vit_large_patch16_384 vit_large_patch16_dinov3
        vit_large_patch16_dinov3_qkvb vit_large_patch16_lingbot
        vit_large_patch16_rope_224 vit_large_patch16_rope_ape_224
        vit_large_patch16_rope_mixed_224 vit_large_patch16_rope_mixed_ape_224
        vit_large_patch16_siglip_256 vit_large_patch16_siglip_384
        vit_large_patch16_siglip_gap_256 vit_large_patch16_siglip_gap_384
        vit_large_patch32_224 vit_large_patch32_384 vit_large_r50_s32_224
        vit_large_r50_s32_384 vit_pe_core_gigantic_patch14_448
        vit_pe_core_large_patch14_336 vit_pe_lang_gigantic_patch14_448
        vit_pe_lang_large_patch14_448 vit_pe_spatial_gigantic_patch14_448
        vit_pe_spatial_large_patch14_448 vit_so400m_patch14_reg1_tipsv2
        vit_so400m_patch14_siglip_224 vit_so400m_patch14_siglip_378
        vit_so400m_patch14_siglip_384 vit_so400m_patch14_siglip_gap_224
        vit_so400m_patch14_siglip_gap_378 vit_so400m_patch14_siglip_gap_384
        vit_so400m_patch14_siglip_gap_448 vit_so400m_patch14_siglip_gap_896
        """,
    ),
    (
        "gelu-tanh",
        12,
        """
        naflexvit_base_patch16_siglip vit_base_patch32_siglip_256
        vit_base_patch32_siglip_gap_256
        """,
    ),
    (
        "gelu-tanh",
        16,
        """
        naflexvit_so400m_patch16_siglip vit_giantopt_patch16_siglip_256
        vit_giantopt_patch16_siglip_384 vit_giantopt_patch16_siglip_gap_256
        vit_giantopt_patch16_siglip_gap_384 vit_large_patch16_siglip_512
        vit_large_patch16_siglip_gap_512 vit_so400m_patch16_siglip_256
        vit_so400m_patch16_siglip_384 vit_so400m_patch16_siglip_512
        vit_so400m_patch16_siglip_gap_256 vit_so400m_patch16_siglip_gap_384
        vit_so400m_patch16_siglip_gap_512
        """,
    ),
    (
        "quick-gelu",
        12,
        """
        vit_base_patch16_clip_quickgelu_224 vit_base_patch32_clip_quickgelu_224
        """,
    ),
    (
        "quick-gelu",
        16,
        """
        vit_gigantic_patch14_clip_quickgelu_224 vit_huge_patch14_clip_quickgelu_224
        vit_huge_patch14_clip_quickgelu_378 vit_large_patch14_clip_quickgelu_224
        vit_large_patch14_clip_quickgelu_336
        """,
    ),
    (
        "swiglu",
        3,
        """
        eva02_tiny_patch14_224 eva02_tiny_patch14_336
        """,
    ),
    (
        "swiglu",
        6,
        """
        eva02_small_patch14_224 eva02_small_patch14_336 vit_small_plus_patch16_dinov3
        vit_small_plus_patch16_dinov3_qkvb
        """,
    ),
    (
        "swiglu",
        12,
        """
        aimv2_huge_patch14_224 aimv2_huge_patch14_336 aimv2_huge_patch14_448
        eva02_base_patch14_224 eva02_base_patch14_448 eva02_base_patch16_clip_224
        vit_base_patch16_sapiens2
        """,
    ),
    (
        "swiglu",
        16,
        """
        aimv2_1b_patch14_224 aimv2_1b_patch14_336 aimv2_1b_patch14_448
        eva02_large_patch14_224 eva02_large_patch14_448 eva02_large_patch14_clip_224
        eva02_large_patch14_clip_336 vit_huge_patch16_sapiens2
        vit_large_patch16_sapiens2
        """,
    ),
    (
        "swiglu",
        20,
        """
        vit_huge_plus_patch16_dinov3 vit_huge_plus_patch16_dinov3_qkvb
        """,
    ),
    (
        "swiglu",
        24,
        """
        aimv2_3b_patch14_224 aimv2_3b_patch14_336 aimv2_3b_patch14_448
        vit_giant_patch14_dinov2 vit_giant_patch14_reg1_tipsv2
        vit_giant_patch14_reg4_dinov2 vit_giant_patch16_lingbot
        vit_giant_patch16_sapiens2
        """,
    ),
    (
        "swiglu",
        32,
        """
        vit_5b_patch16_sapiens2 vit_7b_patch16_dinov3
        """,
    ),
    (
        "swiglu",
        8,
        """
        aimv2_large_patch14_224 aimv2_large_patch14_336 aimv2_large_patch14_448
        """,
    ),
)
"""The MLP's non-linearity, the number of heads, and the architectures that have them."""

VITS: dict[str, tuple[Activation, int]] = {
    name: (activation, heads) for activation, heads, names in _GROUPS for name in names.split()
}
"""Non-linearity and heads of a ViT or hybrid, by timm's name."""

RESNETS = frozenset(
    f"resnetv2_{size}_bit" for size in ("50x1", "50x3", "101x1", "101x3", "152x2", "152x4")
)
"""timm's names of BiT."""

RESIZED: dict[str, ResizeRule] = {
    "naflexvit_base_patch16_siglip": "siglip2",
    "naflexvit_so400m_patch16_siglip": "siglip2",
    "naflexvit_base_patch16_par_gap": "timm-square",
    "naflexvit_base_patch16_parfac_gap": "timm-square",
}
"""Those whose positions are resized by another rule than timm's usual one."""
