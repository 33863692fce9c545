"""What `vitrail finetune photos/` takes where nothing is said: folder, batch, weights, time."""

import json
import logging
import re
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

import vitrail
from tests.commands import run
from tests.shelf import refusal
from vitrail.config import Duration, InputError, read_file
from vitrail.recipes import fit_batch
from vitrail.run_settings import configure, configure_finetuning
from vitrail.signals import Stopped
from vitrail.training.checkpoints.default_folder import choose_out, data_name
from vitrail.training.checkpoints.run_folder import prepare_folder
from vitrail.training.optimization.optim import OptimConfig
from vitrail.training.optimization.time_plan import Afterwards, count_passes, fit_steps
from vitrail.training.train_config import TrainConfig
from vitrail.training.trainer_setup import plan_intervals
from vitrail.weights import load
from vitrail.weights.published import default_weights
from vitrail.weights.published.catalog import find
from vitrail.weights.published.default_weights import choose_default_weights
from vitrail.weights.sources import remote_sources
from vitrail.weights.sources.resolve import resolve

TINY = "ViT/4@8,depth=1,width=16,heads=2,mlp=32"
CONFIG = TrainConfig(data="digits", model=TINY, out=Path("unused"))

Patch = pytest.MonkeyPatch


@pytest.mark.parametrize(
    ("data", "name"),
    [
        ("photos/", "photos"),
        ("here/photos", "photos"),
        ("digits", "digits"),
        ("digits,per_class=10,seed=1", "digits"),
        ("hf:beans", "beans"),
        ("hf:org/beans,config=x", "beans"),
        ("shapes:hard,size=64", "hard"),
        ("csv:labels.csv", "labels"),
        ("my photos (2)", "my-photos-2"),
        (".", "here"),
    ],
)
def test_data_has_a_short_name(data: str, name: str, tmp_path: Path, monkeypatch: Patch) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "labels.csv").touch()
    monkeypatch.chdir(tmp_path / "here")
    assert data_name(data) == name


def test_a_folder_is_numbered_if_it_is_taken(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.chdir(tmp_path)
    first = choose_out(CONFIG)
    assert first == Path("runs/digits")
    first.mkdir(parents=True)
    begun = replace(CONFIG, out=first)
    prepare_folder(begun, restart=False)
    assert choose_out(CONFIG) == first  # which is resumed
    assert choose_out(replace(CONFIG, seed=1)) == Path("runs/digits-2")
    (first / "result.json").write_text("{}")
    assert choose_out(CONFIG) == Path("runs/digits-2")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="several processes need --out"):
        choose_out(CONFIG)


@pytest.mark.parametrize(
    ("kind", "batch", "cut", "lr"),
    [("sgd", 2048, 256, 0.005), ("adamw", 4096, 256, 0.01), ("sgd", 1442, 1442, 0.04)],
)
def test_a_batch_larger_than_the_data_is_cut(
    kind: Any, batch: int, cut: int, lr: float, caplog: pytest.LogCaptureFixture
) -> None:
    config = replace(CONFIG, batch=batch, optim=OptimConfig(kind=kind, lr=0.04))
    found = fit_batch(config, images=1442, scale_lr=True)
    assert (found.batch, found.optim.lr) == (cut, lr)
    assert len(caplog.messages) == (cut < batch)
    assert fit_batch(config, images=1442, scale_lr=False).optim.lr == 0.04


def test_a_recipe_is_cut_unless_the_batch_was_asked_for(tmp_path: Path) -> None:
    words: Any = {"model": "ViT/4@8,depth=1,width=16,heads=2,mlp=32", "out": tmp_path}
    assert configure("digits", recipe="pretrain", **words).batch == 256
    assert configure("digits", recipe="pretrain", batch=4096, **words).batch == 4096
    assert configure("shapes:count=9000", recipe="pretrain", **words).batch == 4096


@pytest.mark.parametrize(
    ("images", "device", "minutes", "name"),
    [
        (400, "cpu", None, "tiny"),
        (400, "cpu", 60, "small"),
        (50_000, "cpu", 1, "tiny"),
        (5_000, "cuda", None, "base"),
        (100, "cuda", 60, "large"),
        (5_000, "cuda", 0.1, "tiny"),
    ],
)
def test_weights_suit_device_and_time(
    images: int, device: str, minutes: float | None, name: str, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(default_weights, "available_cores", lambda: 2)
    monkeypatch.setattr(default_weights, "resolve", lambda source: None)
    monkeypatch.setattr(default_weights, "weights_at_hand", list)
    source = choose_default_weights(images, device, minutes)
    assert source == f"timm:vit_{name}_patch16_224.augreg_in21k"


def test_weights_at_hand_come_first_and_stand_in_without_network(monkeypatch: Patch) -> None:
    small = find("timm:vit_small_patch16_224.augreg_in21k_ft_in1k")
    assert small is not None

    def refuse(source: str) -> None:
        if source != small.source:
            raise InputError("no network; or write file:FOLDER")

    monkeypatch.setattr(default_weights, "available_cores", lambda: 2)
    monkeypatch.setattr(default_weights, "resolve", refuse)
    monkeypatch.setattr(default_weights, "weights_at_hand", lambda: [small])
    assert choose_default_weights(400, "cuda") == small.source  # though a larger one would fit
    assert choose_default_weights(400, "cpu", 1) == small.source  # though it is slow
    monkeypatch.setattr(default_weights, "weights_at_hand", list)
    with pytest.raises(InputError, match=r"can't be fetched: no network; or give a folder or file"):
        choose_default_weights(400, "cpu")
    with pytest.raises(InputError, match="no data; give DATA"):  # asked for before any weights
        configure_finetuning("")
    with pytest.raises(InputError, match="no weights to start ViT-B/32 from; give --weights"):
        choose_default_weights(400, "cpu", model="ViT-B/32@384")


def test_steps_and_evaluations_fill_the_time() -> None:
    config = replace(CONFIG, batch=32, minutes=5.0)
    trainer = SimpleNamespace(autocast=None)
    run: Any = SimpleNamespace(config=config, val_set=range(300), images=1000, trainer=trainer)
    after = Afterwards(report=True, calibrate=True)
    steps = fit_steps(run, 0.01, 300, after)
    planned = replace(config, length=Duration(steps, "steps"))
    taken = 0.01 * count_passes(planned, plan_intervals(planned, 1000, 300, None), 300)
    passes = 300 + 1000 + 300  # of the calibration, and of the report
    assert after.passes(run) == pytest.approx(passes / 3)
    assert taken + 0.01 * passes / 3 + after.seconds == pytest.approx(300, rel=0.02)
    trainer.autocast = "bfloat16"  # which they are not computed in
    assert fit_steps(run, 0.01, 300, after) < steps < fit_steps(run, 0.01, 300, Afterwards())
    assert after.within(run, 0.01, 300) == after  # 5 of 300 s
    assert after.within(run, 0.1, 100) == Afterwards(report=True)
    assert after.within(run, 1.0, 100) == Afterwards()
    assert Afterwards(report=True).needs(run, 0.1) == pytest.approx(6 + 0.1 * 300 / 3 * 2.2)
    with pytest.raises(InputError, match=r"--minutes 5 is too short here: a step takes 0\.32 s"):
        fit_steps(run, 0.01, 0.1, after)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train a tiny model for a step."""
    out = tmp_path_factory.mktemp("weights") / "run"
    settings = {"loggers": (), "loader.workers": 0}
    vitrail.train("digits", model=TINY, steps=1, out=out, settings=settings, report=False)
    return out


def test_minutes_are_planned_once_and_resumed(
    weights: Path, tmp_path: Path, monkeypatch: Patch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    probes: list[str] = []

    def probe(config: TrainConfig, *_: Any) -> tuple[int, float, Afterwards]:
        probes.append(config.tune.mode)
        steps, epochs = (4, 1.0) if config.tune.mode == "all" else (6, 3.0)
        return steps, epochs, Afterwards()

    monkeypatch.setattr("vitrail.run_minutes.probe_steps", probe)
    command = ("finetune", "digits,per_class=8", "--weights", f"run:{weights}", "--minutes", "3")
    quick = ("--loader.workers", "0", "--loggers", "", "--no-report", "--json")
    code, out, err = run(capsys, *command, *quick)
    assert code == 0, err
    assert probes == ["all", "last"]
    assert "3 min: 3 epochs, 6 steps, of last weights at 8x8" in err
    result = json.loads(out)
    assert (result["run"], result["steps"]) == ("runs/digits", 12)  # as they take far less time
    settings = read_file(Path("runs/digits/config.yaml"))
    assert (settings["minutes"], settings["length"]) == (3.0, "6 steps")
    (Path("runs/digits") / "result.json").unlink()
    code, out, err = run(capsys, *command, *quick)
    assert code == 0, err
    assert len(probes) == 2
    assert json.loads(out)["run"] == "runs/digits"
    assert "resuming runs/digits at step 12 of 12" in err
    assert re.search(r"time     \d\.\d minutes are left of 3 min", err)
    (Path("runs/digits") / "result.json").unlink()
    for changed in (("--batch", "2"), ("--image", "16"), ("--tune", "head"), ("--lr", "0.5")):
        code, out, err = run(capsys, *command, *changed, "--out", "runs/digits", *quick)
        assert (code, out) == (2, ""), changed
        assert "cannot resume" in err, changed


def test_a_run_with_minutes_ends_in_time_and_resumes_with_what_is_left(
    weights: Path, tmp_path: Path, monkeypatch: Patch, caplog: pytest.LogCaptureFixture
) -> None:
    """A step takes a second, 66 times what was planned; a signal comes at the tenth."""
    now, stop_at = [0.0], 10

    class Slow(vitrail.Callback):
        def on_step(self, run: Any, result: Any) -> None:
            now[0] += 1
            if result.step == stop_at:
                run.signals.number = signal.SIGTERM

    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr("vitrail.run.time", clock)
    monkeypatch.setattr("vitrail.training.optimization.deadline.time", clock)
    monkeypatch.setattr("vitrail.run_minutes.probe_steps", lambda *_: (2_000, 1.0, Afterwards()))
    never = Duration(0, "steps")
    settings: Any = {"loggers": (), "minutes": 0.5, "log_every": 1, "eval_every": never}
    config = TrainConfig(
        data="digits",
        model=TINY,
        weights=f"run:{weights}",
        **{"out": tmp_path / "run", "batch": 64, **settings},
    )
    words: Any = {"callbacks": [Slow()], "report": False, "calibrate": False}
    with pytest.raises(Stopped):
        vitrail.train(config, **words)
    assert now == [11.0]
    caplog.set_level(logging.INFO, "vitrail")
    run = vitrail.train(config, **words)
    assert "time     19 s are left of 0.5 min" in caplog.messages
    rates = [
        json.loads(line)["lr"] for line in (run.folder / "metrics.jsonl").read_text().splitlines()
    ]
    assert 27 <= run.steps == len(rates) <= 29  # the rest is left for the report
    assert now == [run.steps]
    assert rates[-1] < 0.01 * max(rates)


def test_minutes_are_one_length(weights: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ("finetune", "digits", "--weights", f"run:{weights}", "--minutes", "3")
    code, _, err = run(capsys, *command, "--steps", "3")
    assert (code, err) == (2, "vitrail: give --steps or --minutes, not both\n")
    code, _, err = run(capsys, *command, "--protocol", "paper", "--recipe", "finetune:pets")
    assert code == 2
    assert err.endswith("leave --minutes out\n")
    code, _, err = run(capsys, *command[:-1], "-3")
    assert code == 2


def test_a_run_says_what_its_data_is(
    weights: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "vitrail")
    settings = {"loggers": (), "loader.workers": 0}
    words: Any = {"weights": f"run:{weights}", "steps": 1, "settings": settings, "report": False}
    vitrail.finetune("digits", out=tmp_path / "run", **words)
    first = caplog.messages[0]
    assert first.startswith("data     1,442 training images of 10 classes, 140 to 147 each (1.1 to")
    assert first.endswith("; evaluated on 355 others (digits/test)")


@pytest.mark.parametrize("weights", [None, "timm:vit_tiny_patch16_224.augreg_in21k"])
@pytest.mark.parametrize(
    ("data", "words", "said"),
    [
        ("digits", {"recipe": "fintune:pets"}, "unknown recipe 'fintune:pets'; did you mean"),
        ("digits", {"settings": {"optim.lrr": "1"}}, "unknown key 'optim.lrr'; did you mean"),
        ("digits", {"settings": {"optm.lr": "1"}}, "unknown option --optm.lr"),
        ("digits", {"tune": "lats"}, "tune.mode: expected 'all', 'head', 'last' or"),
        ("digits", {"batch": 0}, "batch must be in"),
        ("digts", {}, "no folder or dataset 'digts'; did you mean 'digits'"),
        ("photos", {}, "photos (train): each of 2 classes has one image, so none can be held out"),
        ("photos", {"out": "photos/run"}, "photos/run is in the folder of the images"),
    ],
)
def test_what_is_misspelled_is_said_before_weights_are_looked_for(
    data: str,
    words: dict[str, Any],
    said: str,
    weights: str | None,
    tmp_path: Path,
    monkeypatch: Patch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "photos" / name / "1.png")
    asked = list[str]()

    def count(source: str, **_: Any) -> None:
        asked.append(source)
        raise InputError("no network")

    monkeypatch.setattr(default_weights, "resolve", count)
    monkeypatch.setattr(load, "resolve", count)
    monkeypatch.setattr(default_weights, "weights_at_hand", list)
    assert said in refusal(configure_finetuning, data, weights=weights, **words)
    assert asked == []
    assert "no network" in refusal(configure_finetuning, "digits", weights=weights)
    assert len(asked) == 1


def test_a_source_that_is_not_reached_may_be_misspelled(monkeypatch: Patch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise InputError("cannot reach the hub")

    monkeypatch.setattr(remote_sources, "fetch_from_hub", refuse)
    near = refusal(resolve, "timm:vit_tinny_patch16_224.augreg_in21k")
    assert near.startswith("cannot reach the hub; did you mean 'timm:vit_tiny_patch16_224.augreg")
    assert refusal(resolve, "timm:vit_tiny_patch16_224.augreg_in21k") == "cannot reach the hub"
