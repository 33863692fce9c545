"""A head that fine-tuning begins with: a linear probe of the frozen features (arXiv 2202.10054).

A head of zeros sends the backbone gradients of a random direction at first; a probe takes a pass
over some images without gradients, and is often nearly as good as the run's end.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.data.dataset import ImageDataset, select
from vitrail.data.loader import LoaderConfig
from vitrail.data.split import sample_order
from vitrail.data.transforms.preprocess import Preprocess
from vitrail.evaluation.features.extract import extract
from vitrail.evaluation.features.mapped_rows import StandardizedRows
from vitrail.evaluation.probes.linear_probe import fit_head_to
from vitrail.evaluation.probes.probe_model import LinearHead, unstandardize
from vitrail.models.model import Model
from vitrail.training.checkpoints.dtensor import shard_like
from vitrail.training.checkpoints.sharding import unsharded
from vitrail.training.losses import ClassLoss

_STEPS, _TOLERANCE = 1000, 1e-6  # of L-BFGS
_MOST = 5_000  # images that the probe learns from, as many of each class
_DECAY = 0.3  # the best of 0.03, 0.1, 0.3 and 1 for the probe alone, on held-out images of Pets


def start_head(
    model: Model,
    dataset: ImageDataset,
    preprocess: Preprocess,
    *,
    loss: ClassLoss,
    device: torch.device,
    loader: LoaderConfig,
) -> int:
    """Put a linear probe into a model's head; give the number of images that it learned from."""
    assert model.head.output is not None
    classes = len(dataset.classes)
    if dataset.multilabel:
        rows = np.random.default_rng(0).permutation(len(dataset))[:_MOST]
    else:
        each = max(1, _MOST // classes)
        rows = np.concatenate([row[:each] for row in sample_order(dataset.labels, classes, 0)])
    with unsharded(model):
        found = extract(
            model, select(dataset, np.sort(rows)), preprocess, device=device, loader=loader
        )
    x, y = torch.from_numpy(found.values), torch.from_numpy(found.labels)
    if loss == "softmax":
        head = fit_head_to(x, y, classes, _DECAY)
    else:
        head = fit_sigmoid(x, y if y.ndim == 2 else F.one_hot(y, classes), _DECAY)
    fitted = {"weight": head.weight, "bias": head.bias}
    with torch.no_grad():
        for name, parameter in model.head.output.named_parameters():
            parameter.copy_(shard_like(fitted[name].to(parameter), parameter))
    return len(found)


def fit_sigmoid(x: Tensor, y: Tensor, decay: float) -> LinearHead:
    """Fit a logistic regression for each class to features (n, width) and labels (n, classes)."""
    rows, wanted = StandardizedRows(x), y.double()
    values = (x.double() - rows.mean) / rows.std
    weight = torch.zeros(x.shape[1], y.shape[1], dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(y.shape[1], dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [weight, bias],
        max_iter=_STEPS,
        tolerance_grad=_TOLERANCE,
        tolerance_change=0.0,
        line_search_fn="strong_wolfe",
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        logits = torch.addmm(bias, values, weight)
        errors = F.binary_cross_entropy_with_logits(logits, wanted, reduction="sum") / len(x)
        value = errors + decay / 2 * weight.square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    return unstandardize(weight.detach(), bias.detach(), rows.mean, rows.std)
