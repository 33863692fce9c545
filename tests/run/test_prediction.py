"""Runs without labels: the encoder is kept apart, loads anywhere, and resumes to the same bytes."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import vitrail
from tests.runs import train
from tests.training.tasks_of import masked_image_modeling
from vitrail.config import Duration, InputError
from vitrail.data.batches import EvalBatches
from vitrail.data.datasets.open import open_data
from vitrail.data.loader import LoaderConfig
from vitrail.data.transforms.augment import Augment
from vitrail.data.transforms.preprocess import Preprocess
from vitrail.distributed import Processes
from vitrail.models import parse
from vitrail.models.pretraining.masking import sample_masking
from vitrail.models.pretraining.mim import DecoderConfig, MaskConfig, MIMConfig
from vitrail.models.pretraining.patch_targets import make_targets, patchify, prediction_loss
from vitrail.run import TrainConfig
from vitrail.training.loop import Trainer
from vitrail.training.optimization.optim import OptimConfig
from vitrail.training_run import TrainingRun

MODEL = "ViT/4@16,depth=2,width=16,heads=2,mlp=24,dropout=0.1"
LIGHT = DecoderConfig(depth=1, width=8, heads=2)
HALF = (0.5, 0.5, 0.5)
TINY = Preprocess(size=(16, 16), mean=HALF, std=HALF, interpolation="bilinear", fit="stretch")


def configure(out: Path, **changes: Any) -> TrainConfig:
    steps = Duration(6, "steps")
    if changes.get("task") == "mae":
        changes = {"mim": MIMConfig(decoder=LIGHT), **changes}
    config = TrainConfig(
        data="digits",
        model=MODEL,
        out=out,
        task="masked-patches",
        length=steps,
        batch=16,
        augment=Augment(crop="pad"),
        optim=OptimConfig(lr=1e-2),
        eval_every=Duration(3, "steps"),
        save_every=Duration(2, "steps"),
        log_every=1,
        loader=LoaderConfig(workers=0),
    )
    if changes.get("task") == "mae":
        changes = {"mim": MIMConfig(decoder=LIGHT), **changes}
    return replace(config, **changes)


def rows_of(out: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("task", "mim"),
    [
        ("masked-patches", MIMConfig()),
        ("masked-patches", MIMConfig(target="colors")),
        ("masked-patches", MIMConfig(target="pixels", distance="absolute")),
        (
            "mae",
            MIMConfig(mask=MaskConfig(ratio=0.75), target="normalized-pixels", decoder=LIGHT),
        ),
    ],
    ids=["color", "colors", "pixels", "mae"],
)
def test_a_run_keeps_its_encoder_apart(tmp_path: Path, task: Any, mim: MIMConfig) -> None:
    run = train(configure(tmp_path / "run", task=task, mim=mim))
    assert run.top1 is None
    rows = rows_of(tmp_path / "run")
    last = [row for row in rows if "val/loss" in row]
    assert run.loss == last[-1]["val/loss"] < last[0]["val/loss"]
    assert ("val/correct" in last[0]) == mim.target.startswith("color")

    loaded = vitrail.load(str(tmp_path / "run")).model
    assert loaded.spec == replace(parse(MODEL), classes=0)
    file, before = ("model/model", "decoder.") if task == "mae" else ("mim_head", "")
    heads = load_file(tmp_path / "run" / f"{file}.safetensors")
    assert {
        f"{before}{name}" for name in ("mask", "predict.weight", "predict.bias")
    } <= heads.keys()
    assert not any(name.startswith("encoder") for name in heads)
    drawn = np.asarray(Image.open(tmp_path / "run" / "reconstructions.png"))
    assert drawn.shape == (6 * 16, 3 * 16, 3)
    original, corrupted, predicted = np.split(drawn, 3, axis=1)
    hidden = (corrupted == 128).all(-1)
    assert hidden.mean() == pytest.approx(mim.mask.ratio, abs=0.05)
    assert (original == predicted)[~hidden].all()


def test_the_encoder_is_fine_tuned_like_any_other(tmp_path: Path) -> None:
    train(configure(tmp_path / "before"))
    config = configure(
        tmp_path / "after", task="classification", weights=f"run:{tmp_path / 'before'}"
    )
    run = train(config)
    assert run.top1 is not None
    assert vitrail.load(str(tmp_path / "after")).model.spec.classes == 10


@pytest.mark.parametrize("task", ["masked-patches", "mae"])
def test_all_that_is_trained_has_a_gradient(tmp_path: Path, task: Any) -> None:
    """Several processes wait for each other's gradients; no prediction goes through a pooling."""
    config = configure(tmp_path / "run", task=task, model=f"{MODEL},pool=map", ema=0.9)
    training = TrainingRun(config, Processes(0, 1, torch.device("cpu")))
    batch = EvalBatches(open_data("digits", split="val"), training.task.preprocess, batch=4)[0]  # type: ignore[arg-type]
    trainer = training.trainer
    trainer.task.losses(training.model, trainer.task.prepare(batch)).sum().backward()
    for name, parameter in training.model.named_parameters():
        assert parameter.requires_grad == (parameter.grad is not None), name
        assert parameter.requires_grad != name.startswith("encoder.pooling"), name


def test_losses_are_those_of_the_chosen_patches(tmp_path: Path) -> None:
    """The task's loss, an image at a time, from the pixels before any mean and std."""
    config = MIMConfig(target="color")
    batch = EvalBatches(open_data("shapes", split="val"), TINY, batch=5)[0]  # type: ignore[arg-type]
    task = masked_image_modeling(MODEL, TINY, mim=config)
    example = task.prepare(batch)
    logits = torch.randn(5, 8, 512)
    found = task.losses(lambda inputs, corruption: logits, example)  # type: ignore[arg-type]
    chosen = sample_masking(example.keys, (4, 4), config.mask).chosen
    for number in range(5):
        patches = patchify(batch.images[number : number + 1] / 255, (4, 4))
        true = make_targets(patches[:, chosen[number]], (4, 4), "color")
        expected = prediction_loss(logits[number : number + 1], true, "color")
        torch.testing.assert_close(found[number : number + 1], expected)


def test_a_stopped_run_goes_on_to_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mask = MIMConfig(mask=MaskConfig(ratio=0.75), target="pixels", decoder=LIGHT)
    settings: dict[str, Any] = {"task": "mae", "mim": mask}
    train(configure(tmp_path / "whole", **settings))
    real = Trainer.launch

    def step(self: Trainer, number: int, *rest: Any) -> Any:
        if number == 4:
            raise KeyboardInterrupt
        return real(self, number, *rest)

    monkeypatch.setattr(Trainer, "launch", step)
    with pytest.raises(KeyboardInterrupt):
        train(configure(tmp_path / "halves", **settings))
    monkeypatch.setattr(Trainer, "launch", real)
    train(configure(tmp_path / "halves", **settings))
    for name in ("model/model.safetensors", "metrics.jsonl"):
        both = [(tmp_path / run / name).read_bytes() for run in ("whole", "halves")]
        assert both[0] == both[1], name


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"augment": Augment(mixup=0.2)}, "can't predict mixed images"),
        ({"model": "BiT-R50x1@32"}, "has no patch tokens"),
        (
            {
                "model": "ViT/5@15,depth=1,width=16,heads=2,mlp=24",
                "mim": MIMConfig(target="colors"),
            },
            "sides 4 divides, not 5x5",
        ),
        ({"task": "mae", "model": "R+ViT/8@32,depth=1,width=16,heads=2,mlp=24"}, "a stem sees"),
        ({"mim": MIMConfig(mask=MaskConfig(unit=3))}, "unit 3 does not divide"),
        ({"val_split": "", "keep": "best"}, "keep best needs evaluations"),
        ({"eval_every": Duration(0, "steps"), "patience": 2}, "patience needs evaluations"),
    ],
)
def test_what_cannot_be_predicted_is_refused(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        train(configure(tmp_path / "run", **changes))
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
