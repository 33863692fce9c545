"""What small studies share: models of 0.05 to 3 M parameters for 32-pixel images, short runs.

Chosen on CIFAR-10 with a ViT of 0.15 M parameters that sees 25,600 images: AdamW, as the paper
pre-trains, in batches of 64 at 2e-3 (31.1 %; batches of 128 at 3e-3 reach 29.2 % in the same time,
of 32 at 1.5e-3 31.6 % in a quarter more), a tenth of the steps as warm-up, a padded crop and flips.
"""

from __future__ import annotations

from typing import Any

from vitrail.studies.engine.sweep_plan import FewShot

SHORT: dict[str, Any] = {
    "batch": 64,
    "lr": 2e-3,
    "optim.kind": "adamw",
    "optim.weight_decay": 0.05,
    "schedule.warmup": "10 %",
    "augment.crop": "pad",
    "val_split": "test",
    "eval_every": "100 %",
    "save_every": "50 %",
    "loader.workers": 0,
}
"""Words of a short run; its accuracy is measured once, at its end, on the test images."""

TINY: dict[str, Any] = {**SHORT, "batch": 16, "steps": 2}
"""Words of a run that only shows that it runs."""

TINY_DATA = "shapes:easy,count=240"
"""Images of such a run: 240, and 24 to test on."""


def vit(patch: int = 8, depth: int = 4, width: int = 64, options: str = "") -> str:
    """Name a small ViT: heads of 32, an MLP of twice the width."""
    heads = max(1, width // 32)
    name = f"ViT/{patch}@32,depth={depth},width={width},heads={heads},mlp={2 * width}"
    return f"{name},{options}" if options else name


def bit(stages: str, width: int = 32) -> str:
    """Name a small BiT ResNet; its stages are written 1-1-1."""
    return f"BiT@32,stages={stages},width={width}"


def hybrid(stages: str, patch: int = 1, depth: int = 4, width: int = 64) -> str:
    """Name a small hybrid: a ViT over the feature map of a small ResNet."""
    base = vit(patch, depth, width).replace("ViT/", "Hybrid/")
    return f"{base},stages={stages},stem_width=32"


def few_shots(data: str) -> FewShot:
    """Measure the accuracy of a linear model on frozen features of 10 images per class.

    They are sampled among 30 of each class: features of the others need not be computed.
    """
    return FewShot(f"{data},per_class=30", shots=(10,))
