"""A teacher's part of the loss through a whole run, against the closed form."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.faults.toy import MODEL, steps, toy
from tests.runs import train
from tests.shelf import refusal
from tests.training.tasks_of import distillation
from vitrail.data.batches import TrainBatches
from vitrail.data.dataset import ImageDataset
from vitrail.data.datasets.open import open_data
from vitrail.data.loader import LoaderConfig
from vitrail.data.transforms.apply import normalize
from vitrail.data.transforms.augment import Augment
from vitrail.data.transforms.preprocess import Preprocess
from vitrail.models import build
from vitrail.run import TrainConfig
from vitrail.training.losses import DistillConfig, LossConfig, teacher_loss
from vitrail.training.optimization.optim import OptimConfig
from vitrail.training.task import DeviceBatch
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.load import load, read_checkpoint
from vitrail.weights.model_folder import save_folder

PLAIN = Augment(crop="whole", flip=0.0, mixup=0.5)


def student(out: Path, distill: DistillConfig | None, **changes: Any) -> TrainConfig:
    settings: dict[str, Any] = {
        "length": steps(1),
        "augment": PLAIN,
        "optim": OptimConfig(lr=0.0),
        "distill": distill,
        "log_every": 1,
        "loader": LoaderConfig(workers=0),
        "ema": 0.0,
    }
    return toy(out, **{**settings, **changes})


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a little, then say that images are taken with another mean and std."""
    out = tmp_path_factory.mktemp("teacher")
    learns = OptimConfig(lr=1e-2)
    train(student(out / "run", None, length=steps(8), batch=64, optim=learns))
    bundle = read_checkpoint(str(out / "run"))
    assert bundle.preprocess is not None
    odd = replace(bundle.preprocess, mean=(0.3,), std=(0.2,))
    save_folder(replace(bundle, preprocess=odd), out / "odd")
    return out / "odd"


def first_loss(config: TrainConfig) -> float:
    train(config)
    return json.loads((config.out / "metrics.jsonl").read_text().splitlines()[0])["train/loss"]


def taught(teacher: Path, config: TrainConfig) -> np.ndarray:
    """Give the teacher's logits for the first batch, mixed pixels with its own normalization."""
    loaded = load(str(teacher))
    source = open_data("digits", split="train")
    assert isinstance(source, ImageDataset)
    half = Preprocess(size=(8, 8), mean=(0.5,), std=(0.5,), interpolation="bilinear", fit="stretch")
    batches = TrainBatches(source, PLAIN, half, batch=config.batch, seed=config.seed, mixed=False)
    batch = batches[0]
    assert batch.mix is not None
    assert loaded.preprocess is not None
    inputs = normalize(batch.images, loaded.preprocess, device=torch.device("cpu"))
    mixed = batch.mix.share * inputs[1:] + (1 - batch.mix.share) * inputs[:-1]
    with torch.inference_mode():
        return loaded.model(mixed).double().numpy()


@pytest.mark.parametrize("alpha", [0.3, 1.0])
def test_the_first_loss_is_the_closed_form(teacher: Path, tmp_path: Path, alpha: float) -> None:
    """A head of zeros says that all classes are as likely, so that all but the teacher is known."""
    config = student(tmp_path / "run", DistillConfig(teacher=str(teacher), alpha=alpha))
    logits = taught(teacher, config) / 3
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    apart = 9 * (p * (np.log(p) - math.log(0.1))).sum(1).mean()
    expected = (1 - alpha) * math.log(10) + alpha * apart
    assert first_loss(config) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("hard", [False, True])
def test_a_distillation_token_learns_from_the_teacher_alone(teacher: Path, hard: bool) -> None:
    """Against transformers' and timm's rule: a loss a head, of which neither reaches the other."""
    torch.manual_seed(0)
    model = build(MODEL.replace("dropout=0.1,stochastic_depth=0.1", "classes=10,distilled=true"))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    known = load(str(teacher))
    preprocess = known.preprocess
    assert preprocess is not None
    heat: dict[str, Any] = {} if hard else {"temperature": 2.0}
    config = DistillConfig(teacher=str(teacher), alpha=0.25, hard=hard, **heat)
    known.model.eval()
    named = str(model.spec)
    task = distillation(10, preprocess, config, known.model, named)
    inputs, labels = torch.rand(4, 1, 8, 8), torch.tensor([1, 0, 9, 4])
    example = DeviceBatch(inputs, F.one_hot(labels, 10).float(), torch.ones(4), torch.arange(4))
    found = task.losses(model.eval(), example)
    first, second = model(inputs, each=True).unbind(1)
    torch.testing.assert_close((first + second) / 2, model(inputs))
    taught = known.model(inputs).detach()
    apart = F.kl_div(
        (second / 2).log_softmax(1), (taught / 2).log_softmax(1), log_target=True, reduction="none"
    )
    distance = F.cross_entropy(second, taught.argmax(1), reduction="none") if hard else None
    distance = 4 * apart.sum(1) if distance is None else distance
    expected = 0.75 * F.cross_entropy(first, labels, reduction="none") + 0.25 * distance
    torch.testing.assert_close(found, expected)
    task = distillation(10, preprocess, replace(config, alpha=1.0), known.model, named)
    task.losses(model, example).sum().backward()
    heads = {name: p.grad for name, p in model.named_parameters() if "head." in name}
    assert {name for name, grad in heads.items() if grad is not None and grad.abs().sum() > 0} == {
        "distillation_head.output.weight",
        "distillation_head.output.bias",
    }


def test_a_model_with_a_distillation_token_trains_by_it(teacher: Path, tmp_path: Path) -> None:
    model = MODEL + ",distilled=true"
    learns = OptimConfig(lr=1e-2)
    distill = DistillConfig(teacher=str(teacher), alpha=0.5, hard=True)
    config = student(tmp_path / "run", distill, model=model, optim=learns, length=steps(3))
    train(config)
    weights = load(str(config.out)).model.state_dict()
    own, taught = (weights[f"{head}.output.weight"] for head in ("head", "distillation_head"))
    assert taught.abs().sum() > 0  # it began at zero
    assert not torch.equal(own, taught)


def reordered(bundle: Checkpoint, order: list[int]) -> Checkpoint:
    """Give a model's classes other numbers."""
    assert bundle.classes is not None
    names = ("head.output.weight", "head.output.bias")
    moved = {name: bundle.tensors[name][order] for name in names}
    classes = tuple(bundle.classes[number] for number in order)
    spec = replace(bundle.spec, classes=len(order))
    return replace(bundle, spec=spec, tensors={**bundle.tensors, **moved}, classes=classes)


def test_classes_are_known_by_their_names(teacher: Path, tmp_path: Path) -> None:
    order = [3, 1, 4, 0, 5, 9, 2, 6, 8, 7]
    save_folder(reordered(read_checkpoint(str(teacher)), order), tmp_path / "other")
    losses = [
        first_loss(student(tmp_path / name, DistillConfig(teacher=str(source))))
        for name, source in {"a": teacher, "b": tmp_path / "other"}.items()
    ]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)
    save_folder(reordered(read_checkpoint(str(teacher)), order[:9]), tmp_path / "nine")
    distill = DistillConfig(teacher=str(tmp_path / "nine"))
    said = refusal(train, student(tmp_path / "c", distill))
    assert "tells 9 classes apart, but not '7'; fine-tune it on the data first" in said


def test_a_teacher_of_other_channels_or_patches_is_refused(teacher: Path, tmp_path: Path) -> None:
    model = MODEL.replace("channels=1", "channels=3")
    distill = DistillConfig(teacher=str(teacher))
    said = refusal(train, student(tmp_path / "a", distill, model=model))
    assert "takes 1 channels, the student 3" in said
    model = MODEL.replace("ViT/4@8", "ViT/3@9")
    said = refusal(train, student(tmp_path / "b", distill, model=model))
    assert "9x9 image does not split into 4x4 patches" in said


@pytest.mark.parametrize("heat", [1.0, 3.0])
def test_several_labels_are_learned_each_by_itself(heat: float) -> None:
    """Against the distance of Bernoulli distributions, which numpy gives in probabilities."""
    rng = np.random.default_rng(0)
    student, teacher = rng.normal(0, 3, (2, 5, 4))
    p, q = (1 / (1 + np.exp(-each / heat)) for each in (teacher, student))
    expected = heat**2 * (p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))).sum(1)
    given = torch.from_numpy(student), torch.from_numpy(teacher)
    config = DistillConfig(teacher="x", temperature=heat)
    np.testing.assert_allclose(teacher_loss(*given, config, "sigmoid").numpy(), expected)
    hard = teacher_loss(*given, DistillConfig(teacher="x", hard=True), "sigmoid")
    right = np.where(teacher > 0, 1 / (1 + np.exp(-student)), 1 / (1 + np.exp(student)))
    np.testing.assert_allclose(hard.numpy(), -np.log(right).sum(1), rtol=1e-6)


def test_extreme_logits_are_finite() -> None:
    student = torch.tensor([[90.0, -90.0, 0.0]], requires_grad=True)
    taught = torch.tensor([[-90.0, 90.0, 500.0]])
    config = DistillConfig(teacher="x", temperature=1.0)
    teacher_loss(student, taught, config, "sigmoid").sum().backward()
    assert student.grad is not None
    torch.testing.assert_close(student.grad, torch.tensor([[1.0, -1.0, -0.5]]))


def test_a_teacher_that_is_right_is_learned_from_with_several_labels() -> None:
    """Two labels at once: a softmax between them would pull both to one half."""
    taught = torch.tensor([[20.0, 20.0, -20.0]])
    student = torch.zeros(1, 3, requires_grad=True)
    optimizer = torch.optim.SGD([student], lr=1.0)
    for _ in range(200):
        optimizer.zero_grad()
        teacher_loss(student, taught, DistillConfig(teacher="x"), "sigmoid").sum().backward()
        optimizer.step()
    assert student.detach().sigmoid()[0].tolist() == pytest.approx([1, 1, 0], abs=1e-3)


def test_a_teacher_of_one_class_does_not_teach_several_labels(
    teacher: Path, tmp_path: Path
) -> None:
    config = student(
        tmp_path / "run", DistillConfig(teacher=str(teacher)), loss=LossConfig(kind="sigmoid")
    )
    assert "take a teacher of several labels, or --loss.kind softmax" in refusal(train, config)
    assert not config.out.exists()
