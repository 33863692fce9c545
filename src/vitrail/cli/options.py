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
Patches = Annotated[
    int | None,
    optional(
        "N",
        "Keep each image's aspect ratio, in at most N patches, as SigLIP 2 does. Default: as the "
        "weights were published.",
    ),
]
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
    **dict.fromkeys(("arch", "architecture", "model_name", "backbone"), "--model"),
    **dict.fromkeys(("bf16", "amp"), "--precision bfloat16"),
    **dict.fromkeys(("fp16", "half"), "--precision float16"),
    **dict.fromkeys(("img_size", "imgsz", "image_size", "input_size"), "--image"),
    **dict.fromkeys(("output_dir", "output", "project", "save_dir"), "--out"),
    **dict.fromkeys(("opt", "optimizer"), "--optim.kind"),
    **dict.fromkeys(("warmup_epochs", "warmup_steps"), "--schedule.warmup '5 epochs'"),
    "warmup_ratio": "--schedule.warmup '10 %'",
    **dict.fromkeys(("sched", "lr_scheduler_type", "lr_scheduler", "scheduler"), "--schedule.kind"),
    **dict.fromkeys(("clip_grad", "max_grad_norm", "gradient_clip_val"), "--optim.clip"),
    **dict.fromkeys(("label_smoothing", "smoothing"), "--loss.smoothing"),
    **dict.fromkeys(("drop_path", "drop_path_rate"), "--model NAME,stochastic_depth=0.1"),
    **dict.fromkeys(("dropout", "drop", "drop_rate"), "--model NAME,dropout=0.1"),
    **dict.fromkeys(("mixup_alpha",), "--augment.mixup"),
    **dict.fromkeys(("cutmix_alpha",), "--augment.cutmix"),
    **dict.fromkeys(("aa", "auto_augment", "randaug"), "--augment.randaugment.magnitude 10"),
    **dict.fromkeys(("reprob", "random_erasing"), "--augment.erase"),
    **dict.fromkeys(("model_ema", "ema_decay", "model_ema_decay"), "--ema 0.9999"),
    **dict.fromkeys(("log_interval", "logging_steps"), "--log-every"),
    **dict.fromkeys(("save_steps", "save_period", "save_interval"), "--save-every '500 steps'"),
    **dict.fromkeys(("eval_steps", "eval_interval"), "--eval-every '500 steps'"),
    **dict.fromkeys(("report_to", "log_wandb", "logger"), "--loggers wandb"),
    **dict.fromkeys(
        ("gradient_accumulation_steps", "accumulate", "grad_accum_steps"), "--micro-batch"
    ),
    **dict.fromkeys(("lora", "peft"), "--tune lora (of finetune)"),
    **dict.fromkeys(("lora_rank", "lora_r"), "--tune.rank"),
    **dict.fromkeys(("dataset", "data_dir", "data_path"), "DATA, without a flag"),
    **dict.fromkeys(("grad_checkpointing", "gradient_checkpointing"), "--checkpointing"),
    **dict.fromkeys(("torchcompile", "torch_compile"), "--compile"),
    **dict.fromkeys(("pretrained", "checkpoint", "initial_checkpoint"), "--weights (of finetune)"),
}
"""Flags of timm, Hugging Face and Ultralytics, and what they are called here."""
NOT_NEEDED = {
    **dict.fromkeys(("resume", "resume_from_checkpoint"), "run the same command again to resume"),
    **dict.fromkeys(("num_classes", "num_labels", "nc"), "the classes are those of the data"),
    **dict.fromkeys(("gpus", "world_size", "num_gpus"), "start it with torchrun for several GPUs"),
    **dict.fromkeys(("do_train", "do_eval"), "leave it out"),
}
"""Their flags that have no place here, and what to do instead."""
