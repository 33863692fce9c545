"""What a run leaves in its folder: the right weights, the right numbers, and the way to them."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import vitrail
import vitrail.tasks.classification
from tests.faults.toy import MODEL, fail_at, print_of, steps, toy
from tests.runs import train
from vitrail.config import Duration, InputError
from vitrail.data.batches import EvalBatches
from vitrail.data.dataset import ImageDataset
from vitrail.data.datasets.open import open_data
from vitrail.data.loader import LoaderConfig
from vitrail.data.transforms.augment import Augment
from vitrail.distributed import Processes
from vitrail.evaluation.accuracy import Accuracy, measure_accuracy
from vitrail.run import Run, TrainConfig, train_among
from vitrail.training.checkpoints.resume import TENSORS
from vitrail.training.checkpoints.run_folder import prepare_folder
from vitrail.training.checkpoints.state_dicts import load_tensors
from vitrail.training.loop import Trainer
from vitrail.training.optimization.optim import OptimConfig
from vitrail.training.optimization.schedule import ScheduleConfig
from vitrail.training.peft import TuneConfig
from vitrail.training.train_config import PreprocessConfig
from vitrail.training_run import TrainingRun
from vitrail.weights.load import load
from vitrail.weights.loaded import LoadedModel

CPU = torch.device("cpu")
LEARNS: dict[str, Any] = {
    "length": steps(16),
    "batch": 64,
    "augment": Augment(crop="whole", flip=0.0, mixup=0.2),
    "optim": OptimConfig(lr=5e-3),
    "eval_every": steps(8),
    "ema": 0.0,
    "log_every": 1,
    "loader": LoaderConfig(workers=0),
}
GOLDEN = [
    *(2.302585, 2.302585, 2.291854, 2.258322, 2.247670, 2.209848, 2.172307, 2.159211),
    *(2.194743, 2.185820, 2.035914, 2.109549, 1.986833, 2.053272, 1.986754, 2.036140),
]
"""Losses of the first steps, dropout and mixup on; two levels of CPU instructions agree on them."""


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Train the toy until it knows something."""
    return train(toy(tmp_path_factory.mktemp("learned") / "run", **LEARNS))


def rows_of(out: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def measure_on_digits(loaded: LoadedModel) -> Accuracy:
    """Measure a model folder as any other command would."""
    source = open_data("digits", split="test")
    assert isinstance(source, ImageDataset)
    assert loaded.preprocess is not None
    batches = EvalBatches(source, loaded.preprocess, batch=50)
    made = map(batches.__getitem__, range(len(batches)))
    return measure_accuracy(loaded.model, made, loaded.preprocess, device=CPU)


def tensors_of(out: Path) -> dict[str, torch.Tensor]:
    return load_tensors(out / "model" / "model.safetensors")


def test_losses_are_those_written_down(learned: Run) -> None:
    losses = [row["train/loss"] for row in rows_of(learned.folder) if "train/loss" in row]
    assert losses == pytest.approx(GOLDEN, abs=1e-5)


def test_the_result_is_what_the_model_folder_reaches(learned: Run) -> None:
    found = measure_on_digits(load(str(learned.folder / "model")))
    assert (learned.ending, learned.steps) == ("finished", 16)
    assert found[:2] == (learned.top1, learned.top5)
    assert found.loss == pytest.approx(learned.loss, abs=1e-6)
    assert (found.images, found.skipped) == (learned.images, learned.skipped) == (355, 0)
    assert found.top1 > 0.35
    last = rows_of(learned.folder)[-1]
    assert last == {
        "step": 16,
        "val/top1": learned.top1,
        "val/top5": learned.top5,
        "val/loss": learned.loss,
        "val/macro_accuracy": learned.macro_accuracy,
        "val/macro_f1": learned.macro_f1,
    }


def test_the_model_folder_explains_itself(learned: Run) -> None:
    loaded = vitrail.load(str(learned.folder / "model"))
    assert loaded.classes == tuple("0123456789")
    assert str(loaded.model.spec) == MODEL.replace("channels=1", "channels=1,classes=10")
    assert loaded.provenance is not None
    assert loaded.provenance.changes == ("trained on digits",)


def test_a_finished_run_only_says_what_it_reached(
    learned: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = print_of(learned.folder)
    monkeypatch.setattr(Trainer, "launch", None)
    assert train(toy(learned.folder, **{**LEARNS, "log_every": 5})) == learned
    assert print_of(learned.folder) == before
    with pytest.raises(InputError, match=r"cannot resume: seed 5 → 6; use --restart"):
        train(toy(learned.folder, **LEARNS, seed=6))


def test_a_restart_begins_again(tmp_path: Path) -> None:
    config = toy(tmp_path / "run", length=steps(2))
    train(config)
    first = print_of(config.out)
    train(replace(config, seed=6), restart=True)
    assert print_of(config.out) != first
    train(config, restart=True)
    assert print_of(config.out) == first


RESULT = Run(
    folder=Path("run"),
    ending="finished",
    steps=1200,
    top1=0.91234,
    top5=0.99,
    loss=0.3,
    images=1998,
    skipped=2,
)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "finished after 1,200 steps, top-1 91.23% on 1,998 of 2,000 images"),
        ({"skipped": 0}, "finished after 1,200 steps, top-1 91.23% on 1,998 images"),
        ({"ending": "converged", "top1": None, "loss": None}, "converged after 1,200 steps"),
        ({"top1": None}, "finished after 1,200 steps, loss 0.3 on 1,998 of 2,000 images"),
    ],
)
def test_a_result_is_said_in_one_line(changes: dict[str, Any], said: str) -> None:
    assert str(replace(RESULT, **changes)) == said


def test_the_average_is_what_is_evaluated_and_kept(tmp_path: Path) -> None:
    config = toy(tmp_path / "run", **{**LEARNS, "ema": 0.8})
    result = train(config)
    state = load_tensors(config.out / "checkpoints" / "step-00000016" / TENSORS)
    kept = tensors_of(config.out)
    for name, tensor in kept.items():
        assert torch.equal(tensor, state[f"ema:{name}"])
        assert not torch.equal(tensor, state[f"model:{name}"])
    found = measure_on_digits(load(str(config.out / "model")))
    assert found[:2] == (result.top1, result.top5)


def pretend(patch: pytest.MonkeyPatch, accuracies: list[float]) -> list[dict[str, torch.Tensor]]:
    """Let evaluations find these accuracies; give the weights that each of them saw."""
    seen: list[dict[str, torch.Tensor]] = []
    found: Iterator[float] = iter(accuracies)

    def pretended(model: torch.nn.Module, *args: Any, **options: Any) -> Accuracy:
        seen.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
        top1 = next(found)
        return Accuracy(top1, top1 + 0.1, 1 - top1, 9, len(seen))

    patch.setattr(vitrail.tasks.classification, "measure_accuracy", pretended)
    return seen


@pytest.mark.parametrize("ema", [0.0, 0.8])
@pytest.mark.parametrize(("keep", "place"), [("last", 3), ("best", 1)])
def test_the_best_weights_are_kept_if_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: str, place: int, ema: float
) -> None:
    seen = pretend(monkeypatch, [0.3, 0.6, 0.6, 0.5])
    config = toy(tmp_path / "run", keep=keep, ema=ema, length=steps(8), eval_every=steps(2))
    result = train(config)
    assert len(seen) == 4
    kept = tensors_of(config.out)
    assert all(torch.equal(tensor, seen[place][name]) for name, tensor in kept.items())
    top1 = [0.3, 0.6, 0.6, 0.5][place]
    assert (result.top1, result.top5, result.loss) == (top1, top1 + 0.1, 1 - top1)
    assert (result.images, result.skipped) == (9, place + 1)


def test_a_resumed_run_knows_its_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = toy(
        tmp_path / "run", keep="best", length=steps(6), eval_every=steps(2), save_every=steps(1)
    )
    with monkeypatch.context() as patch:
        best = pretend(patch, [0.7])
        fail_at(patch, 3)
        with pytest.raises(ZeroDivisionError):
            train(config)
    pretend(monkeypatch, [0.2, 0.6])
    result = train(config)
    assert (result.top1, result.top5, result.skipped) == (0.7, 0.7 + 0.1, 1)
    kept = tensors_of(config.out)
    assert all(torch.equal(tensor, best[0][name]) for name, tensor in kept.items())


@pytest.mark.parametrize(
    ("patience", "ending", "count"), [(0, "finished", 7), (1, "converged", 3), (2, "converged", 6)]
)
def test_a_run_ends_when_it_gets_no_better(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patience: int, ending: str, count: int
) -> None:
    seen = pretend(monkeypatch, [0.1, 0.4, 0.3, 0.5, 0.5, 0.2, 0.9])
    result = train(
        toy(
            tmp_path / "run",
            patience=patience,
            length=steps(7),
            eval_every=steps(1),
            save_every=steps(3),
        )
    )
    assert (result.ending, result.steps, len(seen)) == (ending, count, count)


def test_a_run_without_a_validation_split_has_no_accuracy(tmp_path: Path) -> None:
    result = train(toy(tmp_path / "run", val_split="", length=steps(2)))
    assert (result.top1, result.top5, result.loss, result.images) == (None, None, None, 0)
    assert not any("val/top1" in row for row in rows_of(tmp_path / "run"))
    assert train(toy(tmp_path / "run", val_split="", length=steps(2))) == result


def finetune(out: Path, learned: Run, **changes: Any) -> TrainConfig:
    settings = {**LEARNS, "length": steps(4), "eval_every": steps(4)}
    return toy(out, **{**settings, "weights": str(learned.folder / "model"), **changes})


def test_low_rank_updates_end_as_a_plain_model(tmp_path: Path, learned: Run) -> None:
    config = finetune(tmp_path / "run", learned, tune=TuneConfig(mode="lora", rank=2))
    config.out.mkdir()
    prepare_folder(config, restart=False)
    training = TrainingRun(config, Processes(0, 1, CPU))
    result = training.run()
    loaded = vitrail.load(str(config.out / "model"))
    assert loaded.model.state_dict().keys() == tensors_of(learned.folder).keys()
    images = torch.rand(5, 1, 8, 8) * 2 - 1
    with torch.inference_mode():
        ours, theirs = training.model.eval()(images), loaded.model(images)
    assert torch.allclose(ours, theirs, atol=1e-5)
    assert measure_on_digits(loaded).top1 == result.top1
    changed = {
        name
        for name, tensor in tensors_of(learned.folder).items()
        if not torch.equal(tensor, loaded.model.state_dict()[name])
    }
    assert changed == {
        *(f"blocks.{number}.attention.qkv.weight" for number in range(2)),
        *("head.output.weight", "head.output.bias"),
    }


def test_low_rank_updates_start_the_same_each_time(tmp_path: Path, learned: Run) -> None:
    tune = TuneConfig(mode="lora", rank=2)
    drawn = []
    for name, seed in {"a": 1, "b": 2}.items():  # what others draw must not matter, nor change
        torch.manual_seed(seed)
        train(finetune(tmp_path / name, learned, tune=tune))
        drawn.append(torch.rand(1))
    assert print_of(tmp_path / "a") == print_of(tmp_path / "b")
    assert [torch.manual_seed(seed) and torch.rand(1) for seed in (1, 2)] == drawn


def test_training_the_head_changes_nothing_below_it(tmp_path: Path, learned: Run) -> None:
    config = finetune(tmp_path / "run", learned, tune=TuneConfig(mode="head"), ema=0.5)
    train(config)
    before, after = tensors_of(learned.folder), tensors_of(config.out)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"head.output.weight", "head.output.bias"}


def test_fine_tuning_may_have_other_dropout_than_the_weights(tmp_path: Path, learned: Run) -> None:
    model = MODEL.replace("dropout=0.1,stochastic_depth=0.1", "dropout=0.0,stochastic_depth=0.3")
    config = finetune(tmp_path / "run", learned, model=model)
    train(config)
    spec: Any = load(str(config.out / "model")).model.spec
    assert (spec.dropout, spec.stochastic_depth) == (0.0, 0.3)
    with pytest.raises(InputError, match=r"weights are of ViT/4@8,depth=2.* ViT/4@8,depth=3"):
        train(finetune(tmp_path / "other", learned, model=MODEL.replace("depth=2", "depth=3")))


def test_what_is_free_to_change_changes_no_bit_of_the_model(tmp_path: Path) -> None:
    whole, begun = (toy(tmp_path / name, length=steps(8)) for name in ("whole", "begun"))
    train(whole)
    with pytest.MonkeyPatch.context() as patch:
        fail_at(patch, 5)
        with pytest.raises(ZeroDivisionError):
            train(begun)
    changes: dict[str, Any] = {
        "eval_every": steps(1),
        "save_every": steps(2),
        "log_every": 1,
        "max_unreadable": 0.0,
    }
    changes |= {"checkpointing": True, "loader": LoaderConfig(workers=0), "device": "cpu"}
    train(replace(begun, **changes))
    one, two = print_of(whole.out), print_of(begun.out)
    for name in ("model.safetensors", TENSORS, "result.json"):
        assert one[name] == two[name]


def test_a_run_of_no_step_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"length 0 epochs is shorter than one step"):
        train(toy(tmp_path / "run", length=Duration(0, "epochs")))


def test_a_run_in_another_thread_hears_no_signals_but_ends(tmp_path: Path) -> None:
    config = toy(tmp_path / "run", length=steps(2))
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(train, config).result().steps == 2


def test_a_small_part_of_a_short_run_is_a_step(tmp_path: Path) -> None:
    """10 % of 3 steps are none when rounded, but an evaluation that was asked for is made."""
    rare = Duration(10, "%")
    assert (
        train(toy(tmp_path / "run", length=steps(3), eval_every=rare, save_every=rare)).images
        == 355
    )
    assert (tmp_path / "run" / "checkpoints" / "step-00000003").exists()


def test_a_run_that_rested_ends_as_any_other(tmp_path: Path) -> None:
    """It rests where it evaluates anyway; what else it saves is forgotten by the end."""
    train(toy(tmp_path / "whole"))
    config = toy(tmp_path / "rested")
    for pause in (Duration(40, "%"), steps(4), None):
        result = train_among(Processes(0, 1, CPU), config, pause=pause)
        assert (result.ending, result.steps) == (
            ("finished", 10) if pause is None else ("paused", 4)
        )
        assert result.images == 355
        assert (config.out / "result.json").exists() == (pause is None)
    assert print_of(config.out) == print_of(tmp_path / "whole")


def test_images_are_fitted_as_settings_say_and_the_model_folder_knows(tmp_path: Path) -> None:
    fit = PreprocessConfig(fit="crop", crop=0.5, interpolation="bicubic")
    config = toy(tmp_path / "run", **{**LEARNS, "length": steps(4), "preprocess": fit})
    result = train(config)
    loaded = load(str(config.out))
    assert loaded.preprocess is not None
    found = (loaded.preprocess.fit, loaded.preprocess.crop, loaded.preprocess.interpolation)
    assert found == ("crop", 0.5, "bicubic")
    assert measure_on_digits(loaded).top1 == result.top1
    again = finetune(tmp_path / "again", result, preprocess=PreprocessConfig(crop=0.75))
    train(again)
    tuned = load(str(again.out)).preprocess
    assert tuned == replace(loaded.preprocess, crop=0.75)  # the rest is as the weights have it


@pytest.mark.parametrize("kind", ["cosine", "constant"])
def test_a_cooldown_that_multiplies_a_decay_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: Any
) -> None:
    schedule = ScheduleConfig(kind=kind, cooldown=steps(1))
    train(toy(tmp_path / "run", length=steps(2), schedule=schedule))
    said = "the cool-down of 1 step multiplies the cosine decay, which ends low without it"
    assert (said in caplog.messages) == (kind == "cosine")


def test_an_average_that_is_still_its_start_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    train(toy(tmp_path / "run", ema=0.99, length=steps(2)))
    said = [text for text in caplog.messages if "EMA" in text]
    assert said == [
        "an EMA decay of 0.99 is still 98% the starting weights after 2 steps; "
        "a smaller one forgets sooner"
    ]
