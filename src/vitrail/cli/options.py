"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import tyro


def optional(metavar: str, help: str | None = None) -> Any:
    """Name the value of a flag that may be left out; its sentence says what holds then."""
    return tyro.conf.arg(metavar=metavar, help=help, help_behavior_hint="")


Model = Annotated[
    tyro.conf.Positional[str],
    tyro.conf.arg(
        metavar="MODEL",
        help="A run folder, a model folder, or weights: timm:…, hf:…, google:…, file:…, a path.",
    ),
]
Data = Annotated[
    tyro.conf.Positional[str],
    tyro.conf.arg(
        metavar="DATA",
        help="A folder, or csv:FILE, cifar10:DIR, imagenet:DIR, hf:NAME, wds:PATTERN, digits, …",
    ),
]
Split = Annotated[str | None, optional("S")]
Image = Annotated[str | None, optional("HxW")]
File = Annotated[Path | None, optional("FILE")]
Device = Annotated[str | None, optional("NAME", "cpu, cuda:1, mps. Default: the best there is.")]
Workers = Annotated[int | None, optional("N")]
Json = Annotated[bool, tyro.conf.arg(help="Print JSON instead of a table.")]
Classes = Annotated[
    str | None,
    optional(
        "NAMES",
        "Classes as text, for a CLIP or SigLIP: cat,dog, or a file with one per line. Default: the "
        "model's own.",
    ),
]
Templates = Annotated[
    str | None,
    optional(
        "TEXT",
        "Prompts for the classes: a text with {}, a file with one per line, or clip-7, CLIP's "
        "seven. Default: 'a photo of a {}.'",
    ),
]

Unsure = Annotated[
    str | None,
    optional(
        "RATE",
        "Withhold answers, so that at most this fraction of the others is wrong, such as 5%, on "
        "images like those that the model was calibrated on. Default: all are given.",
    ),
]

OTHER_NAMES = {
    **dict.fromkeys(("learning_rate", "lr0", "base_lr", "blr"), "--lr"),
    **dict.fromkeys(("weight_decay", "wd"), "--optim.weight-decay"),
    **dict.fromkeys(("workers", "num_workers", "dataloader_num_workers"), "--loader.workers"),
    **dict.fromkeys(("freeze", "freeze_backbone", "linear_probe"), "--tune head (of finetune)"),
    **dict.fromkeys(("batch_size", "per_device_train_batch_size", "train_batch_size"), "--batch"),
    **dict.fromkeys(("num_epochs", "num_train_epochs", "max_epochs", "n_epochs"), "--epochs"),
    **dict.fromkeys(("max_steps", "num_steps", "max_train_steps"), "--steps"),
    **dict.fromkeys(("bf16", "amp"), "--precision bfloat16"),
    **dict.fromkeys(("fp16", "half"), "--precision float16"),
    **dict.fromkeys(("img_size", "imgsz", "image_size", "input_size"), "--image"),
    **dict.fromkeys(("output_dir", "output", "project", "save_dir"), "--out"),
    **dict.fromkeys(("opt", "optimizer"), "--optim.kind"),
    **dict.fromkeys(("warmup_epochs", "warmup_steps"), "--schedule.warmup '5 epochs'"),
    **dict.fromkeys(("sched", "lr_scheduler_type", "lr_scheduler"), "--schedule.kind"),
    **dict.fromkeys(("clip_grad", "max_grad_norm", "gradient_clip_val"), "--optim.clip"),
    **dict.fromkeys(("label_smoothing", "smoothing"), "--loss.smoothing"),
    **dict.fromkeys(("drop_path", "drop_path_rate"), "--model NAME,stochastic_depth=0.1"),
    **dict.fromkeys(("mixup_alpha",), "--augment.mixup"),
    **dict.fromkeys(("grad_checkpointing", "gradient_checkpointing"), "--checkpointing"),
    **dict.fromkeys(("torchcompile", "torch_compile"), "--compile"),
    **dict.fromkeys(("pretrained", "checkpoint", "initial_checkpoint"), "--weights (of finetune)"),
}
"""Flags of timm, Hugging Face and Ultralytics, and what they are called here."""
