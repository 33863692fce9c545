"""Runs with parts of one's own: they work, are noted, resume to the same bytes, or say why not."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import yaml
from PIL import Image

import vitrail
from tests.faults.toy import MODEL, fail_at, print_of, steps, toy
from tests.forks import in_processes
from tests.run import own_parts
from tests.runs import train
from tests.shelf import refusal
from vitrail.cli import main
from vitrail.config import from_dict
from vitrail.data.batches import TrainBatches
from vitrail.data.datasets.open import open_data, open_splits, open_stand_in
from vitrail.data.loader import LoaderConfig
from vitrail.data.transforms.augment import Augment
from vitrail.data.transforms.preprocess import Preprocess
from vitrail.distributed import Shard
from vitrail.models.pretraining.mim import MIMConfig
from vitrail.run import TrainConfig
from vitrail.run_estimate import estimate
from vitrail.training.optimization.optim import OptimConfig

HERE = "tests.run.own_parts"
PLAIN: dict[str, Any] = {
    "augment": Augment(crop="whole", flip=0.0),
    "length": steps(4),
    "eval_every": steps(2),
    "save_every": steps(2),
    "log_every": 1,
    "ema": 0.0,
    "loader": LoaderConfig(workers=0),
}
"""Four steps on digits without mixing, evaluated and saved twice."""


def small(out: Path, **changes: Any) -> TrainConfig:
    return toy(out, **{**PLAIN, **changes})


def rows_of(out: Path, name: str) -> list[float]:
    rows = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    return [row[name] for row in rows if name in row]


def noted(out: Path) -> TrainConfig:
    return from_dict(TrainConfig, yaml.safe_load((out / "config.yaml").read_text()))


def resumes_to_the_same(config: TrainConfig, **parts: Any) -> None:
    """Kill a run, resume it by its config.yaml alone, and compare with one that was not."""
    train(config, **parts)
    begun = replace(config, out=config.out.with_name("begun"))
    with pytest.MonkeyPatch.context() as patch:
        fail_at(patch, 3)
        with pytest.raises(ZeroDivisionError):
            train(begun, **parts)
    train(noted(begun.out))
    assert print_of(begun.out) == print_of(config.out)


def test_a_dataset_is_given_again_to_resume(tmp_path: Path) -> None:
    config = small(tmp_path / "run", batch=8)
    data = own_parts.squares()
    with pytest.MonkeyPatch.context() as patch:
        fail_at(patch, 3)
        with pytest.raises(ZeroDivisionError):
            train(config, data=data)
    assert noted(config.out).data == "object:squares"
    again = refusal(lambda: train(noted(config.out)))
    assert "data of your own, squares" in again
    assert "train(…, data=…)" in again
    other = refusal(lambda: train(config, data=own_parts.squares(20)))
    assert "squares" in other
    assert train(config, data=own_parts.squares()).steps == 4


@pytest.mark.parametrize("labels", [True, False])
def test_a_torch_dataset_trains(tmp_path: Path, labels: bool) -> None:
    config = small(tmp_path / "run", batch=8, **({} if labels else {"repeats": 2}))
    splits = {"train": own_parts.Pairs(24), "val": own_parts.Pairs(8)}
    task = None if labels else own_parts.Contrastive
    run = train(config, data=splits if labels else own_parts.Pairs(24), task=task)
    assert run.steps == 4
    assert vitrail.load(config.out).model.spec.classes == (2 if labels else 0)


def test_data_by_import_path(tmp_path: Path) -> None:
    text = f"py:{HERE}:by_split"
    assert len(open_data(text, split="train")) == 24  # type: ignore[arg-type]
    assert open_data(text, split="val").name == f"py:{HERE}:by_split test"
    stand_in = open_stand_in(text)
    assert stand_in is not None
    assert stand_in.name == f"py:{HERE}:by_split test"
    assert {name: len(each) for name, each in open_splits(text).items()} == {"train": 24, "test": 8}
    assert "has no split 'other'" in refusal(lambda: open_data(text, split="other"))
    assert "cannot import" in refusal(lambda: open_data(f"py:{HERE}:nothing"))
    resumes_to_the_same(small(tmp_path / "run", data=text, batch=8))


def test_a_contrastive_task_on_images_without_labels(tmp_path: Path) -> None:
    (tmp_path / "flat").mkdir()
    rng = np.random.default_rng(0)
    for number in range(12):
        pixels = rng.integers(0, 256, (8, 8), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "flat" / f"{number}.png")
    config = small(tmp_path / "run", data=str(tmp_path / "flat"), batch=8, repeats=2, val_split="")
    resumes_to_the_same(config, task=own_parts.Contrastive)
    assert noted(config.out).parts.task == f"{HERE}:Contrastive"
    assert estimate(noted(config.out)).micro == 8


def test_the_contrastive_loss_is_that_of_the_whole_batch(tmp_path: Path) -> None:
    """The first loss against the closed form: every other image of the batch repels."""
    config = small(tmp_path / "run", batch=8, repeats=2, length=steps(1), val_split="")
    config = replace(config, model=config.model.partition(",dropout")[0], optim=OptimConfig(lr=0.0))
    train(config, task=own_parts.Contrastive, data=own_parts.squares())
    (loss,) = rows_of(config.out, "train/loss")
    loaded = vitrail.load(config.out)
    assert loaded.preprocess is not None
    batch = TrainBatches(
        own_parts.squares(), config.augment, loaded.preprocess, batch=8, seed=5, repeats=2
    )[0]
    assert batch.indices[:4].tolist() == batch.indices[4:].tolist()
    with torch.inference_mode():
        made = vitrail.normalize(batch.images, loaded.preprocess, device=torch.device("cpu"))
        features = F.normalize(loaded.model(made), dim=-1).double()
    total = 0.0
    for row in range(8):
        scores = [float(features[row] @ features[other]) / 0.5 for other in range(8)]
        rest = sum(np.exp(scores[other]) for other in range(8) if other != row)
        total -= np.log(np.exp(scores[(row + 4) % 8]) / rest) / 8
    assert loss == pytest.approx(total, abs=1e-5)


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_copies_stay_in_one_process(processes: int) -> None:
    half = Preprocess(size=(8, 8), mean=(0.5,), std=(0.5,), interpolation="bilinear", fit="stretch")
    whole: list[int] = []
    for rank in range(processes):
        batches = TrainBatches(
            own_parts.squares(), Augment(), half, batch=16, seed=1, repeats=2,
            shard=Shard(rank, processes), together=True,
        )  # fmt: skip
        mine = batches[1].indices.tolist()
        assert mine[: len(mine) // 2] == mine[len(mine) // 2 :]
        whole += mine
    alone = TrainBatches(own_parts.squares(), Augment(), half, batch=16, seed=1, repeats=2)[1]
    assert sorted(whole) == sorted(alone.indices.tolist())


@pytest.mark.parametrize(
    ("changes", "parts", "said"),
    [
        ({}, {"task": own_parts.Scalar}, "Scalar.losses must return a loss for each image, a tens"),
        ({}, {"task": lambda config, data: None}, "the task must be a vitrail.Task, got NoneType"),
        ({"batch": 9, "repeats": 2}, {"task": own_parts.Contrastive}, "batch must be a multiple"),
        ({"micro_batch": 4}, {"task": own_parts.Contrastive}, "Contrastive needs the whole batch"),
        ({"augment": Augment(mixup=0.2)}, {"task": own_parts.Contrastive}, "can't learn from mix"),
        ({}, {"optimizer": list}, "the optimizer must be a torch.optim.Optimizer, got list"),
        ({}, {"schedule": lambda step, total: "fast"}, "must return a number >= 0, got 'fast'"),
        ({}, {"schedule": lambda step, total: -step}, "must return a number >= 0, got -3 at s"),
        ({}, {"transform": own_parts.shrink}, "uint8 of shape (8, 8, 1), got uint8 of (7, 8, 1)"),
        ({}, {"transform": lambda image, rng: None}, "uint8 of shape (8, 8, 1), got NoneType"),
        ({"val_split": ""}, {"metrics": [own_parts.label_sum]}, "metrics need validation images"),
        ({}, {"model": own_parts.forget}, "the model's function must return the model, got None"),
        ({}, {"optimizer": f"{HERE}:nothing"}, "optimizer: cannot import"),
        ({"loggers": (f"{HERE}:nothing",)}, {}, "loggers: cannot import"),
    ],
)  # fmt: skip
def test_a_wrong_part_is_refused_before_anything_is_written(
    tmp_path: Path, changes: dict[str, Any], parts: dict[str, Any], said: str
) -> None:
    config = small(tmp_path / "run", **changes)
    assert said in refusal(lambda: train(config, **parts))
    assert {path.name for path in config.out.glob("*")} <= {"run.lock"}


def test_an_optimizer_by_object_and_by_path(tmp_path: Path) -> None:
    plain, path = small(tmp_path / "plain"), small(tmp_path / "path")
    train(plain, optimizer=torch.optim.RMSprop)
    resumes_to_the_same(path, optimizer="torch.optim.RMSprop")
    assert noted(path.out).parts == noted(plain.out).parts
    assert noted(path.out).parts.optimizer == "torch.optim.rmsprop:RMSprop"
    assert print_of(path.out) == print_of(plain.out)
    train(adam := small(tmp_path / "adam"))
    assert print_of(adam.out)["model.safetensors"] != print_of(plain.out)["model.safetensors"]


def test_an_optimizer_with_groups_of_its_own(tmp_path: Path) -> None:
    def flat(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        return torch.optim.SGD([each for group in groups for each in group["params"]])

    assert train(small(tmp_path / "run"), optimizer=flat).steps == 4
    said = (tmp_path / "run" / "log.txt").read_text()
    assert "flat: of optim.*, it gets lr, weight_decay, layer_decay and clip" in said


def test_a_schedule(tmp_path: Path) -> None:
    config = small(tmp_path / "run", optim=OptimConfig(lr=1e-2))
    resumes_to_the_same(config, schedule=own_parts.half)
    said = f"the schedule is {HERE}:half, in the place of schedule.*"
    assert said in (config.out / "log.txt").read_text()
    assert rows_of(config.out, "lr") == [5e-3, 5e-3, 2.5e-3, 2.5e-3]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_transform_gives_the_same_bytes(tmp_path: Path, workers: int) -> None:
    config = small(tmp_path / "run", loader=LoaderConfig(workers=workers))
    resumes_to_the_same(config, transform=own_parts.speckle)
    train(other := small(tmp_path / "other"), transform=f"{HERE}:speckle")
    assert print_of(other.out) == print_of(config.out)
    train(plain := small(tmp_path / "plain"))
    assert print_of(plain.out)["metrics.jsonl"] != print_of(config.out)["metrics.jsonl"]


def test_a_transform_draws_for_each_image_anew(tmp_path: Path) -> None:
    drawn: list[float] = []

    def note(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        drawn.append(rng.random())
        return image

    config = small(tmp_path / "run", batch=8, length=steps(3), repeats=2)
    train(config, transform=note)
    assert len(set(drawn)) == len(drawn) == 1 + 3 * 8  # and the one by which it is checked


def expected_sum() -> float:
    labels = open_data("digits", split="val").labels  # type: ignore[union-attr]
    return float((labels * np.arange(1, len(labels) + 1)).sum())


def test_metrics_see_all_images_in_order(tmp_path: Path) -> None:
    config = small(tmp_path / "run")
    metrics = {"sum": own_parts.label_sum, "last": own_parts.last_output}
    resumes_to_the_same(config, metrics=metrics)
    assert rows_of(config.out, "val/sum") == [expected_sum()] * 2
    loaded = vitrail.load(config.out)
    assert loaded.preprocess is not None
    dataset = open_data("digits", split="val")
    pixels = torch.from_numpy(dataset.read(len(dataset) - 1))[None]  # type: ignore[union-attr]
    made = vitrail.normalize(pixels, loaded.preprocess, device=torch.device("cpu"))
    with torch.inference_mode():
        value = float(loaded.model(made)[0, 0])
    assert rows_of(config.out, "val/last")[-1] == pytest.approx(value, abs=1e-5)


@pytest.mark.slow
def test_metrics_see_all_images_of_two_processes(tmp_path: Path) -> None:
    config = small(tmp_path / "run", length=steps(2))
    for ended in in_processes(lambda: train(config, metrics=[own_parts.label_sum])):
        assert ended.error == ""
    assert rows_of(config.out, "val/label_sum") == [expected_sum()]


def test_metrics_of_a_task_without_labels(tmp_path: Path) -> None:
    """They get the model's features, and the labels that the images have."""
    once = {"length": steps(1), "eval_every": steps(1), "mim": MIMConfig(target="pixels")}
    config = small(tmp_path / "run", task="masked-patches", **once)
    widths: list[tuple[int, ...]] = []

    def note(outputs: torch.Tensor, labels: torch.Tensor) -> float:
        widths.append(tuple(outputs.shape))
        return own_parts.label_sum(outputs, labels)

    train(config, metrics={"sum": note})
    assert rows_of(config.out, "val/sum") == [expected_sum()]
    assert {shape[1:] for shape in widths} == {(32,)}


def test_a_metric_that_is_not_a_number(tmp_path: Path) -> None:
    config = small(tmp_path / "run", length=steps(1))
    said = refusal(lambda: train(config, metrics={"pair": lambda x, y: (1, 2)}))  # type: ignore
    assert said == "the metric pair must return a number, got tuple"


def test_a_logger(tmp_path: Path) -> None:
    config = small(tmp_path / "run", loggers=(f"{HERE}:Lines",))
    with pytest.MonkeyPatch.context() as patch:
        fail_at(patch, 3)
        with pytest.raises(ZeroDivisionError):
            train(config)
    train(noted(config.out))
    lines = [json.loads(line) for line in (config.out / "lines.txt").read_text().splitlines()]
    assert lines[0] == ["open", 0]
    assert ["close", True] in lines
    assert lines[lines.index(["close", True]) + 1] == ["open", 2]
    assert lines[-1] == ["close", False]
    assert "train/loss" in lines[1][1]
    by_object = small(tmp_path / "object")
    train(by_object, loggers=[own_parts.Lines])
    assert noted(by_object.out).loggers == (f"{HERE}:Lines",)
    assert (by_object.out / "lines.txt").exists()


def test_a_callback_is_told_what_happens(tmp_path: Path) -> None:
    own_parts.SEEN.clear()
    train(small(tmp_path / "run"), callbacks=[own_parts.Told])
    assert noted(tmp_path / "run").parts.callbacks == (f"{HERE}:Told",)
    first = [("start", 0), ("step", 1), ("step", 2), ("evaluation", 2), ("save", 2)]
    then = [("step", 3), ("step", 4), ("evaluation", 4), ("save", 4), ("end", 4)]
    assert first + then == own_parts.SEEN


@pytest.mark.parametrize(
    "parts",
    [
        {"callbacks": [own_parts.Told()]},
        {"schedule": lambda step, total: 1.0},
        {"metrics": {"one": lambda outputs, labels: 1.0}},
    ],
)
def test_an_object_without_a_path_is_given_again(tmp_path: Path, parts: dict[str, Any]) -> None:
    config = small(tmp_path / "run")
    with pytest.MonkeyPatch.context() as patch:
        fail_at(patch, 3)
        with pytest.raises(ZeroDivisionError):
            train(config, **parts)
    (name,) = parts
    said = refusal(lambda: train(noted(config.out)))
    assert "which has no import path; give it again" in said
    assert f"train(…, {name}=…)" in said
    assert "give the same object again" in refusal(lambda: train(config))
    assert train(config, **parts).steps == 4


def test_a_model_part(tmp_path: Path) -> None:
    config = small(tmp_path / "run")
    resumes_to_the_same(config, model=own_parts.gate_first_block)
    assert noted(config.out).parts.model == f"{HERE}:gate_first_block"
    train(other := small(tmp_path / "other"), model=f"{HERE}:gate_first_block")
    assert print_of(other.out) == print_of(config.out)
    said = refusal(lambda: vitrail.load(config.out))
    assert f"put in by {HERE}:gate_first_block" in said
    assert "vitrail.load(…, change=that function)" in said
    model = vitrail.load(config.out, change=own_parts.gate_first_block).model
    gain = float(model.state_dict()["blocks.0.mlp.gain"])
    assert gain != 0.5
    assert "do not fit the changed model" in refusal(
        lambda: vitrail.load(config.out, change=lambda model: model)
    )


def test_a_model_that_was_built(tmp_path: Path) -> None:
    """Training starts from its weights and leaves them as they are."""
    config = small(tmp_path / "run", optim=OptimConfig(lr=0.0))
    model = vitrail.build(config.model)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    train(config, model=model)
    kept = vitrail.load(config.out).model.state_dict()
    assert all(torch.equal(kept[name], each) for name, each in before.items() if "head" not in name)
    assert all(torch.equal(model.state_dict()[name], each) for name, each in before.items())
    (config.out / "result.json").unlink()
    assert "train(…, model=…)" in refusal(lambda: train(noted(config.out)))


def test_from_the_shell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", f"py:{HERE}:by_split", "--model", toy(tmp_path).model.partition(",drop")[0]]
    words += ["--task", f"{HERE}:Contrastive", "--parts.optimizer", "torch.optim.RMSprop"]
    words += ["--parts.schedule", f"{HERE}:half", "--loggers", f"{HERE}:Lines", "--no-report"]
    words += ["--epochs", "1", "--batch", "8", "--repeats", "2", "--loader.workers", "0"]
    words += ["--val-split", "", "--out", str(tmp_path / "run")]
    main([*words, "--dry-run"])
    assert "8 at a time" in capsys.readouterr().out
    main(words)
    config = noted(tmp_path / "run")
    assert config.parts.task == f"{HERE}:Contrastive"
    assert config.parts.optimizer == "torch.optim.rmsprop:RMSprop"
    assert config.loggers == (f"{HERE}:Lines",)
    with pytest.raises(SystemExit) as stop:
        main([*words[:-1], str(tmp_path / "wrong"), "--parts.schedule", f"{HERE}:none"])
    assert stop.value.code == 2
    assert "cannot import" in capsys.readouterr().err
    assert not list((tmp_path / "wrong").glob("*.yaml"))


def test_finetuning_takes_data_and_parts(tmp_path: Path) -> None:
    train(small(tmp_path / "first"), data=own_parts.squares())
    splits: Any = {"train": own_parts.Pairs(24), "val": own_parts.Pairs(8)}
    run = vitrail.finetune(
        splits,
        weights=str(tmp_path / "first"),
        steps=2,
        batch=8,
        out=tmp_path / "second",
        report=False,
        settings={"parts.optimizer": "torch.optim.RMSprop", "loggers": ""},
    )
    assert run.steps == 2  # type: ignore[union-attr]
    assert noted(tmp_path / "second").parts.optimizer == "torch.optim.rmsprop:RMSprop"


def test_finetuning_takes_objects_as_training_does(tmp_path: Path) -> None:
    train(small(tmp_path / "first"), data=own_parts.squares())
    seen = list[float]()

    def mean_target(outputs: torch.Tensor, labels: torch.Tensor) -> float:
        return float(labels.double().mean())

    class Seen(vitrail.Callback):
        def on_step(self, run: Any, result: Any) -> None:
            seen.append(result.step)

    words: dict[str, Any] = {
        "weights": str(tmp_path / "first"),
        "steps": 2,
        "batch": 8,
        "report": False,
        "loggers": [],
    }
    data = {"train": own_parts.Pairs(24), "val": own_parts.Pairs(8)}
    run = vitrail.finetune(
        data,
        out=tmp_path / "second",
        transform=own_parts.speckle,
        metrics={"mean_target": mean_target},
        callbacks=[Seen()],
        optimizer=torch.optim.RMSprop,
        schedule=own_parts.half,
        **words,
    )
    assert seen == [1, 2]
    assert run.steps == 2  # type: ignore[union-attr]
    assert rows_of(tmp_path / "second", "val/mean_target") == [0.5]
    own = noted(tmp_path / "second").parts
    assert (own.transform, own.schedule) == (f"{HERE}:speckle", f"{HERE}:half")
    for wrong, message in (
        ({"transfrom": None}, "unknown argument transfrom; did you mean 'transform'?"),
        ({"momentum": 0.9}, "unknown argument momentum; did you mean settings={'optim.momentum'"),
        ({"nothing_like_it": 1}, "unknown argument nothing_like_it (see docs/settings.md)"),
    ):
        assert message in refusal(vitrail.finetune, data, out=tmp_path / "x", **words, **wrong)
    assert not (tmp_path / "x").exists()


def test_a_task_in_a_file_is_not_overruled_by_silence(tmp_path: Path) -> None:
    (tmp_path / "mae.yaml").write_text("task: masked-patches\nmim: {target: pixels}\n")
    words = ["train", "digits", "--model", toy(tmp_path).model, "--steps", "1", "--batch", "8"]
    words += ["--config", str(tmp_path / "mae.yaml"), "--out", str(tmp_path / "run")]
    main([*words, "--no-report", "--loader.workers", "0"])
    assert noted(tmp_path / "run").task == "masked-patches"


def test_a_task_without_labels_has_the_outputs_that_the_name_says(tmp_path: Path) -> None:
    """A projection for its loss; without them it has no head, as ever."""
    seen: dict[str, int] = {}

    class Projected(own_parts.Contrastive):
        def losses(self, model: Any, batch: Any) -> Any:
            seen[self.config.out.name] = model.spec.classes
            return super().losses(model, batch)

    for name, model in (("16", f"{MODEL},classes=16"), ("none", MODEL)):
        config = toy(
            tmp_path / name, model=model, length=steps(1), batch=8, repeats=2, val_split=""
        )
        config = replace(config, augment=Augment(), ema=0.0)
        train(config, task=Projected)
    assert seen == {"16": 16, "none": 0}
    assert vitrail.load(f"run:{tmp_path / '16'}").model.spec.classes == 16
