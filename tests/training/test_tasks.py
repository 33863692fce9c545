"""Losses against their closed forms, and batches made into examples."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.training.tasks_of import classification, distillation
from vitrail.config import InputError
from vitrail.data.batches import Batch
from vitrail.data.transforms.mixing import Mix
from vitrail.data.transforms.preprocess import Preprocess
from vitrail.tasks.classification import Classification
from vitrail.training.losses import DistillConfig, LossConfig, label_loss
from vitrail.training.task import DeviceBatch

SMALL = Preprocess(size=(2, 2), mean=(0.5,), std=(0.5,), interpolation="bilinear", fit="stretch")


def batch_of(labels: Tensor, *, mix: Mix | None = None, weights: Tensor | None = None) -> Batch:
    count = len(labels)
    generator = torch.Generator().manual_seed(1)
    return Batch(
        images=torch.randint(256, (count, 2, 2, 1), dtype=torch.uint8, generator=generator),
        labels=labels,
        weights=torch.ones(count) if weights is None else weights,
        indices=torch.arange(100, 100 + count),
        mix=mix,
    )


class Linear(nn.Module):
    """Logits that are a linear map of an image's four pixels."""

    def __init__(self, classes: int, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(torch.randn(classes, 4, generator=generator))

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) @ self.weight.T


def losses_of(task: Classification, batch: Batch, model: nn.Module) -> Tensor:
    return task.losses(model, task.prepare(batch)).detach()


def inputs_of(batch: Batch) -> np.ndarray:
    """Normalize by hand: from 0 … 255 to -1 … 1, channels second."""
    return batch.images.numpy().astype(np.float64).transpose(0, 3, 1, 2) / 127.5 - 1


def logits_of(model: Linear, inputs: np.ndarray) -> np.ndarray:
    return inputs.reshape(len(inputs), -1) @ model.weight.detach().double().numpy().T


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.9])
def test_softmax_loss_with_smoothing_is_the_closed_form(smoothing: float) -> None:
    labels, model = torch.tensor([0, 3, 2, 2]), Linear(5, 0)
    batch = batch_of(labels)
    found = losses_of(classification(5, SMALL, LossConfig(smoothing=smoothing)), batch, model)
    logits = logits_of(model, inputs_of(batch))
    log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    own = log_p[np.arange(4), labels.numpy()]
    expected = -((1 - smoothing) * own + smoothing * log_p.mean(1))
    assert found.numpy() == pytest.approx(expected, abs=1e-5)
    theirs = F.cross_entropy(
        torch.from_numpy(logits), labels, reduction="none", label_smoothing=smoothing
    )
    assert found.numpy() == pytest.approx(theirs.numpy(), abs=1e-5)


def test_sigmoid_loss_is_the_closed_form_summed_over_classes() -> None:
    labels, model = torch.tensor([1, 0, 2]), Linear(3, 1)
    batch = batch_of(labels)
    found = losses_of(classification(3, SMALL, LossConfig(kind="sigmoid")), batch, model)
    p = 1 / (1 + np.exp(-logits_of(model, inputs_of(batch))))
    own = np.eye(3)[labels.numpy()]
    expected = -(own * np.log(p) + (1 - own) * np.log(1 - p)).sum(1)
    assert found.numpy() == pytest.approx(expected, abs=1e-5)


def test_several_labels_per_image_take_the_sigmoid_loss() -> None:
    labels = torch.tensor([[1, 1, 0], [0, 0, 0]], dtype=torch.uint8)
    logits = torch.tensor([[0.0, 0.0, 0.0], [math.log(3), 0.0, 0.0]])
    task = classification(3, SMALL, LossConfig(kind="sigmoid", smoothing=0.5))
    example = task.prepare(batch_of(labels))
    torch.testing.assert_close(example.targets, labels / 2 + 0.5 / 3)
    found = label_loss(logits, labels.float(), "sigmoid")
    log2 = math.log(2)
    assert found.tolist() == pytest.approx([3 * log2, math.log(4) + 2 * log2])


def test_losses_are_in_float32_whatever_the_logits_are() -> None:
    logits = torch.randn(4, 7).bfloat16()
    targets = torch.eye(7)[:4]
    found = label_loss(logits, targets, "softmax")
    assert found.dtype == torch.float32
    assert torch.equal(found, label_loss(logits.float(), targets, "softmax"))


def test_large_logits_give_finite_losses() -> None:
    logits = torch.tensor([[1e4, -1e4], [-1e4, 1e4]])
    targets = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    assert label_loss(logits, targets, "softmax").tolist() == [0.0, 2e4]
    assert label_loss(logits, targets, "sigmoid").tolist() == [0.0, 2e4]


@pytest.mark.parametrize("mix", [Mix(0.7), Mix(0.75, (0, 0, 1, 1))])
def test_mixing_is_of_neighbors_and_their_labels(mix: Mix) -> None:
    batch = batch_of(torch.tensor([0, 1, 2]), mix=mix)
    example = classification(3, SMALL, LossConfig(smoothing=0.3)).prepare(batch)
    plain = inputs_of(batch)
    if mix.box is None:
        expected = mix.share * plain[1:] + (1 - mix.share) * plain[:-1]
    else:
        expected = plain[1:].copy()
        expected[:, :, 0, 0] = plain[:-1, :, 0, 0]
    assert example.inputs.numpy() == pytest.approx(expected, abs=1e-6)
    soft = 0.7 * np.eye(3) + 0.1
    shares = mix.share * soft[[1, 2]] + (1 - mix.share) * soft[[0, 1]]
    assert example.targets.numpy() == pytest.approx(shares, abs=1e-6)
    assert example.keys.tolist() == [101, 102]  # the first row is a partner only


def test_a_mixture_with_an_unreadable_image_counts_for_nothing() -> None:
    weights = torch.tensor([1.0, 1.0, 0.0, 1.0, 1.0])
    batch = batch_of(torch.arange(5), mix=Mix(0.6), weights=weights)
    example = classification(5, SMALL).prepare(batch)
    assert example.weights.tolist() == [1.0, 0.0, 0.0, 1.0]


def test_parts_of_an_example_are_the_whole() -> None:
    example = classification(5, SMALL).prepare(batch_of(torch.arange(5)))
    parts = [example.part(0, 2), example.part(2, 5)]
    for whole, *pieces in zip(example, *parts, strict=True):
        assert torch.equal(whole, torch.cat(pieces))
    assert isinstance(parts[0], DeviceBatch)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_distillation_weighs_labels_and_teacher_by_the_closed_form(alpha: float) -> None:
    """Compare answers at a temperature, whose square keeps the gradient's size (1503.02531)."""
    student, teacher, temperature = Linear(4, 2), Linear(4, 3), 2.5
    labels = torch.tensor([3, 0, 1])
    batch = batch_of(labels)
    config = DistillConfig(teacher="", alpha=alpha, temperature=temperature)
    task = distillation(4, SMALL, config, teacher)
    found = losses_of(task, batch, student)

    def soften(model: Linear) -> np.ndarray:
        powers = np.exp(logits_of(model, inputs_of(batch)) / temperature)
        return powers / powers.sum(1, keepdims=True)

    taught, own = soften(teacher), soften(student)
    apart = (taught * np.log(taught / own)).sum(1) * temperature**2
    hard = losses_of(classification(4, SMALL), batch, student).numpy()
    assert found.numpy() == pytest.approx((1 - alpha) * hard + alpha * apart, abs=1e-5)


def test_a_teacher_is_not_trained() -> None:
    student, teacher = Linear(4, 2), Linear(4, 3)
    task = distillation(4, SMALL, DistillConfig(teacher=""), teacher)
    task.losses(student, task.prepare(batch_of(torch.arange(4)))).sum().backward()
    assert student.weight.grad is not None
    assert teacher.weight.grad is None


def test_hard_distillation_learns_the_teachers_choice() -> None:
    """DeiT's hard form: the mean of two cross-entropies (arXiv 2012.12877, equation 3)."""
    student, teacher = Linear(4, 2), Linear(4, 3)
    batch = batch_of(torch.tensor([3, 0, 1]))
    config = DistillConfig(teacher="", hard=True)
    found = losses_of(distillation(4, SMALL, config, teacher), batch, student)
    chosen = batch_of(torch.from_numpy(logits_of(teacher, inputs_of(batch)).argmax(1)))
    plain = classification(4, SMALL)
    both = losses_of(plain, batch, student) + losses_of(plain, chosen, student)
    assert found.numpy() == pytest.approx(both.numpy() / 2, abs=1e-6)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"alpha": 1.5}, "alpha must be in \\[0, 1\\], got 1.5"),
        ({"temperature": 0.0}, "temperature must be above 0, got 0.0"),
        ({"temperature": float("nan")}, "temperature: expected a number, got nan"),
    ],
)
def test_a_distillation_of_odd_numbers_is_refused(settings: dict[str, float], said: str) -> None:
    with pytest.raises(InputError, match=said):
        DistillConfig(teacher="", **settings)  # pyright: ignore[reportArgumentType]


def test_a_student_like_its_teacher_has_no_distance() -> None:
    config = DistillConfig(teacher="", alpha=1.0)
    task = distillation(4, SMALL, config, Linear(4, 2))
    assert losses_of(task, batch_of(torch.arange(4)), Linear(4, 2)).abs().max() < 1e-6


@pytest.mark.parametrize("smoothing", [-0.1, 1.0])
def test_a_smoothing_that_is_no_part_is_refused(smoothing: float) -> None:
    with pytest.raises(InputError, match=rf"smoothing must be in \[0, 1\), got {smoothing}"):
        LossConfig(smoothing=smoothing)
