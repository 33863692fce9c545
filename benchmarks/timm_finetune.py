"""Fine-tune a timm model with timm's own parts; prints the accuracy after each epoch.

timm's train script is in its repository, not in its package. This is its loop for one process,
from create_model to create_scheduler_v2, with its defaults (float32, random resized crops of 8 to
100 %, flips, color jitter 0.4, smoothing 0.1) and, where it has no default for fine-tuning, what
its author published for ViT: AdamW, layer decay 0.7, cosine to 0 after a warm-up
(huggingface.co/timm/vit_base_patch16_224.augreg2_in21k_ft_in1k/discussions/1). Left out, because
they slow ten epochs down: mixup, CutMix, RandAugment, drop path. The published learning rate, 2e-4,
is for batches of 512. It was chosen anew on two of ten training images a class of pets-mini, held
out (top-1 after ten epochs, one or two draws of 74 images): AdamW 2e-4 83.8 %, 5e-4 84.5 %, 1e-3
83.1 %; SGD 0.01 without layer decay 86.5 % in one draw and 77.0 % after 7 epochs in the other. With
--amp it is --amp --amp-dtype bfloat16 of the train script, which is faster on processors that
have it.
"""

from __future__ import annotations

import argparse
import random
import time
from typing import Any

import numpy as np
import torch
from peers import mend_torchvision

mend_torchvision()

import timm  # noqa: E402
from timm.data import (  # noqa: E402
    create_dataset,  # pyright: ignore[reportPrivateImportUsage]
    create_loader,  # pyright: ignore[reportPrivateImportUsage]
    resolve_data_config,  # pyright: ignore[reportPrivateImportUsage]
)
from timm.loss.cross_entropy import LabelSmoothingCrossEntropy  # noqa: E402
from timm.optim._optim_factory import create_optimizer_v2  # noqa: E402
from timm.scheduler.scheduler_factory import create_scheduler_v2  # noqa: E402
from timm.utils.metrics import AverageMeter, accuracy  # noqa: E402


def main() -> None:
    """Train, and evaluate after each epoch, as the train script does."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data")
    parser.add_argument("--weights", required=True)
    parser.add_argument("--model", default="vit_tiny_patch16_224.augreg_in21k_ft_in1k")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--opt", choices=("adamw", "sgd"), default="adamw")
    parser.add_argument("--lr", type=float, default=5e-4)
    parser.add_argument("--amp", action="store_true", help="train and evaluate in bfloat16")
    args = parser.parse_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)
    sets: list[Any] = [create_dataset("", root=args.data, split=each) for each in ("train", "test")]
    overlay = {"file": f"{args.weights}/model.safetensors", "custom_load": False}
    model = timm.create_model(
        args.model,
        pretrained=True,
        pretrained_cfg_overlay=overlay,
        num_classes=len(sets[0].reader.class_to_idx),
    )
    config = resolve_data_config({}, model=model)
    shared: dict[str, Any] = {
        **{name: config[name] for name in ("input_size", "interpolation", "mean", "std")},
        "batch_size": args.batch,
        "num_workers": 2,
        "device": torch.device("cpu"),
        "use_prefetcher": False,
        "persistent_workers": True,
    }
    train = create_loader(sets[0], is_training=True, color_jitter=0.4, **shared)
    test = create_loader(sets[1], is_training=False, crop_pct=config["crop_pct"], **shared)
    optimizer = create_optimizer_v2(
        model,
        opt=args.opt,
        lr=args.lr,
        weight_decay=0.05 if args.opt == "adamw" else 0.0,
        layer_decay=0.7 if args.opt == "adamw" else None,
    )
    scheduler, epochs = create_scheduler_v2(
        optimizer,
        sched="cosine",
        num_epochs=args.epochs,
        warmup_epochs=1,
        warmup_lr=1e-6,
        min_lr=0.0,
        step_on_epochs=False,
        updates_per_epoch=len(train),
    )
    assert scheduler is not None
    loss_of, updates, evaluated = LabelSmoothingCrossEntropy(0.1), 0, 0.0
    for epoch in range(epochs):
        model.train()
        for images, labels in train:
            with torch.autocast("cpu", torch.bfloat16, enabled=args.amp):
                loss = loss_of(model(images), labels)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            updates += 1
            scheduler.step_update(num_updates=updates)
        began = time.monotonic()
        with torch.autocast("cpu", torch.bfloat16, enabled=args.amp):
            top1 = _evaluate(model, test)
        evaluated += time.monotonic() - began
        print(f"epoch {epoch + 1} top-1 {top1:.2f}%, {evaluated:.1f} s evaluated", flush=True)
        scheduler.step(epoch + 1)


@torch.inference_mode()
def _evaluate(model: torch.nn.Module, loader: Any) -> float:
    model.eval()
    meter = AverageMeter()
    for images, labels in loader:
        meter.update(accuracy(model(images), labels)[0].item(), len(labels))
    return meter.avg


if __name__ == "__main__":
    main()
