"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated

import tyro

Json = Annotated[bool, tyro.conf.arg(help="Print JSON instead of a table.")]

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
