"""The head that fine-tuning begins with: a probe of the frozen features, where none is learned."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

import vitrail
from vitrail.data.datasets.open import open_dataset
from vitrail.evaluation.features.extract import extract
from vitrail.evaluation.probes.head_start import fit_sigmoid
from vitrail.recipes import finetune_default
from vitrail.training.run_result import Run
from vitrail.training.train_config import TrainConfig

TINY = "ViT/4@8,depth=1,width=16,heads=2,mlp=32"
QUICK: Any = {"loggers": (), "loader.workers": 0, "eval_every": "0 steps"}
ENDS: Any = {"report": False, "calibrate": False}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the weights of a model that knows other classes."""
    out = tmp_path_factory.mktemp("source") / "run"
    vitrail.train("shapes", model=TINY, steps=1, out=out, settings=QUICK, **ENDS)
    return out


def test_a_run_begins_with_a_probe_of_the_frozen_features(
    source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With a learning rate of 0 the model is the probe; scikit-learn's is the same."""
    caplog.set_level(logging.INFO, "vitrail")
    words: Any = {"weights": f"run:{source}", "steps": 1, "lr": 0.0, "settings": QUICK, **ENDS}
    run = vitrail.finetune("digits,per_class=8", out=tmp_path / "run", **words)
    assert "head     a linear probe of the frozen features of 80 training images" in caplog.messages
    assert isinstance(run, Run)
    loaded = vitrail.load(run.folder)
    head = loaded.model.head.output
    assert isinstance(head, torch.nn.Linear)
    images = open_dataset("digits,per_class=8", split="train")
    assert loaded.preprocess is not None
    found = extract(loaded.model, images, loaded.preprocess)
    values = found.values.astype(np.float64)
    x = (values - values.mean(0)) / values.std(0)
    theirs = LogisticRegression(C=1 / (len(x) * 0.3), tol=1e-9, max_iter=10_000)
    expected = theirs.fit(x, found.labels).decision_function(x)
    ours = values @ head.weight.detach().numpy().T + head.bias.detach().numpy()
    assert ours - ours.mean(1, keepdims=True) == pytest.approx(
        np.asarray(expected) - expected.mean(1, keepdims=True), abs=1e-4
    )


def test_what_was_learned_of_the_same_classes_is_kept(
    source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "vitrail")
    words: Any = {"weights": f"run:{source}", "steps": 1, "lr": 0.0, "settings": QUICK, **ENDS}
    run = vitrail.finetune("shapes", out=tmp_path / "run", **words)
    assert not [each for each in caplog.messages if each.startswith("head ")]
    assert isinstance(run, Run)
    before, after = vitrail.load(source), vitrail.load(run.folder)
    for name, tensor in before.model.state_dict().items():
        assert torch.equal(tensor, after.model.state_dict()[name]), name


def test_only_where_all_weights_are_trained_few_epochs_begin_with_a_probe() -> None:
    config = TrainConfig(data="digits", model=TINY, out=Path("unused"), weights="file:x")
    whole = finetune_default(config)
    assert (whole.tune.head, str(whole.length), whole.batch) == ("probe", "3 epochs", 32)
    fresh = finetune_default(vitrail.TrainConfig(data="digits", model=TINY, out=Path("unused")))
    assert (fresh.tune.head, str(fresh.length), fresh.batch) == ("replace", "10 epochs", 64)


def test_several_labels_begin_with_a_logistic_regression_each() -> None:
    generator = np.random.default_rng(0)
    x = 3 + 2 * generator.standard_normal((60, 5))
    y = (x @ generator.standard_normal((5, 3)) + generator.standard_normal(3) > 1).astype(np.int64)
    found = fit_sigmoid(torch.from_numpy(x), torch.from_numpy(y), 0.3)
    standard = (x - x.mean(0)) / x.std(0)
    for label in range(3):
        theirs = LogisticRegression(C=1 / (60 * 0.3), tol=1e-9).fit(standard, y[:, label])
        ours = x @ found.weight[label].numpy() + found.bias[label].numpy()
        assert ours == pytest.approx(theirs.decision_function(standard), abs=1e-4)
