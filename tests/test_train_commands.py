"""`vitrail train` and `vitrail finetune` as a user meets them, on embedded digits."""

import json
import re
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import torch

import vitrail
from tests.commands import loaded_after, run
from tests.material import ROOT
from vitrail.cli.train import MORE
from vitrail.config import Duration, InputError, read_file
from vitrail.data.loader import WorkerError
from vitrail.data.transforms.augment import Augment
from vitrail.models import parse
from vitrail.models.cost.total import cost_of
from vitrail.models.cost.training_cost import training_cost
from vitrail.recipes import RECIPES
from vitrail.run_settings import RunWords, configure
from vitrail.signals import Stopped
from vitrail.training.loop import DivergedError
from vitrail.training.train_config import TrainConfig

TINY = "ViT/4@8,depth=2,width=32,heads=2,mlp=64"
TRAIN = ("train", "digits", "--model", TINY, "--batch", "64")
QUICK = ("--loader.workers", "0", "--loggers", "")
DOCS = ROOT / "docs"

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Train a tiny model for 8 steps, through the command."""
    out = tmp_path_factory.mktemp("runs") / "tiny"
    with pytest.MonkeyPatch.context() as patch:
        lines: list[str] = []
        patch.setattr("vitrail.console.print_line", lines.append)
        vitrail.cli.main([*TRAIN, "--steps", "8", "--out", str(out), "--json", *QUICK])
    (line,) = lines
    return out, json.loads(line)


def test_train_gives_a_run(trained: tuple[Path, dict[str, Any]]) -> None:
    out, result = trained
    keys = {"run", "steps", "top1", "top5", "loss", "images", "skipped", "ending"}
    keys |= {"map", "macro_f1", "micro_f1", "macro_accuracy", "chosen_on", "seed", "settings"}
    keys |= {"model", "parameters", "trained_parameters", "images_seen", "flops", "machine"}
    keys |= {"data", "example", "fewshot", "top1_interval", "worst_classes", "test", "evaluated_on"}
    keys |= {"mae", "rmse", "r2", "r2_interval"}  # of a regression
    assert set(result) == keys
    assert (result["run"], result["steps"], result["ending"]) == (str(out), 8, "finished")
    assert (result["images"], result["skipped"]) == (355, 0)
    assert 0 <= result["top1"] <= result["top5"] <= 1
    assert read_file(out / "config.yaml")["length"] == "8 steps"


def test_the_report_can_be_left_out(
    trained: tuple[Path, dict[str, Any]], capsys: Capture, tmp_path: Path
) -> None:
    words = (*TRAIN, "--steps", "1", "--no-report", *QUICK)
    assert run(capsys, *words, "--out", str(tmp_path / "run"))[0] == 0
    assert (trained[0] / "report.html").exists()
    assert (tmp_path / "run" / "model").exists()
    assert not (tmp_path / "run" / "report.html").exists()


def test_a_finished_run_says_what_it_reached_and_what_is_next(
    trained: tuple[Path, dict[str, Any]], capsys: Capture
) -> None:
    out, result = trained
    code, said, _ = run(capsys, *TRAIN, "--steps", "8", "--out", str(out), *QUICK)
    assert code == 0
    low, high = result["top1_interval"]
    assert 0 < low < result["top1"] < high < 1
    rates = [right / count for _, count, right in result["worst_classes"]]
    assert rates == sorted(rates)
    first, worst, *rest = said.splitlines()
    on = "on 355 validation images, finished after 8 steps"
    assert first == f"top-1    {result['top1']:.2%} (95 % interval {low:.1%} to {high:.1%}) {on}"
    assert len(re.findall(r"\d \(\d+ of \d+\)", worst)) == 3
    assert [line.split()[0] for line in rest[:2]] == ["model", "report"]
    commands = [line.removeprefix("next").strip() for line in rest[2:]]
    asked = [f"vitrail evaluate {out} digits", f"vitrail predict {out} new/"]
    assert commands == [*asked, f"vitrail serve {out}"]


def test_other_settings_are_no_resumption(
    trained: tuple[Path, dict[str, Any]], capsys: Capture
) -> None:
    out, _ = trained
    command = (*TRAIN, "--steps", "8", "--out", str(out), "--lr", "0.5", *QUICK)
    code, _, err = run(capsys, *command)
    assert code == 2
    assert "--restart" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("named", [True, False], ids=["named", "as the weights say"])
def test_finetune_at_another_resolution(
    trained: tuple[Path, dict[str, Any]], tmp_path: Path, capsys: Capture, named: bool
) -> None:
    """Without a learning rate the classes of the same name keep their rows of the head."""
    model = ("--model", TINY.replace("@8", "@16")) if named else ("--image", "16")
    arguments = (*model, "--weights", f"run:{trained[0]}", "--steps", "10", "--lr", "0")
    arguments = (*arguments, "--no-report", "--no-calibration")
    out = tmp_path / "run"
    code, said, err = run(
        capsys, "finetune", "digits", *arguments, "--out", str(out), "--json", *QUICK
    )
    assert code == 0, err
    result = json.loads(said)
    assert result["steps"] == 10
    loaded, before = vitrail.load(f"run:{out}"), vitrail.load(f"run:{trained[0]}")
    assert loaded.model.spec.image == (16, 16)
    for name, parameter in loaded.model.head.named_parameters():
        assert torch.equal(parameter, before.model.head.get_parameter(name))
    said = (out / "log.txt").read_text()
    assert "10 of 10 classes kept by name" in said
    assert "trained on" not in said  # what the weights went through before is not this run's
    assert loaded.preprocess is not None
    assert loaded.preprocess.size == (16, 16)


def test_finetune_tunes_what_it_is_told(
    trained: tuple[Path, dict[str, Any]], tmp_path: Path, capsys: Capture
) -> None:
    source, out = f"run:{trained[0]}", str(tmp_path / "run")
    arguments = ("--weights", source, "--tune", "head", "--dry-run", "--json", "--out", out)
    code, said, err = run(capsys, "finetune", "digits", *arguments, *QUICK)
    assert code == 0, err
    assert json.loads(said)["trained"] == 33 * 10


def test_a_dry_run_plans_and_leaves_nothing_behind(tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "runs" / "a"
    arguments = ("--steps", "100", "--micro-batch", "16", "--out", str(out), "--dry-run", "--json")
    code, said, err = run(capsys, *TRAIN, *arguments, "--ema", "0.9", *QUICK)
    assert code == 0, err
    plan = json.loads(said)
    spec = parse(f"{TINY},classes=10")
    cost, training = cost_of(spec, batch=16), training_cost(spec, batch=16)
    assert (plan["steps"], plan["warmup"], plan["lr"]) == (100, 5, 1e-3)
    assert (plan["batch"], plan["micro"], plan["accumulation"]) == (64, 16, 4)
    assert (plan["images"], plan["classes"]) == (1442, 10)
    assert plan["epochs"] == pytest.approx(6400 / 1442)
    assert plan["trained"] == plan["parameters"] == cost.parameters
    assert plan["state_bytes"] == cost.training_state_bytes + cost.parameter_bytes  # the average
    assert plan["activation_bytes"] == training.activation_bytes
    assert plan["flops"] == training.flops * 6400
    assert plan["seconds"] > 0
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_speaks_to_people_too(tmp_path: Path, capsys: Capture) -> None:
    arguments = ("--epochs", "2", "--micro-batch", "16", "--out", str(tmp_path / "a"), "--dry-run")
    code, said, _ = run(capsys, *TRAIN, *arguments, *QUICK)
    assert code == 0
    lines = dict(line.split(maxsplit=1) for line in said.splitlines())
    assert list(lines) == ["model", "data", "length", "rate", "batch", "memory", "work", "time"]
    assert lines["length"].startswith("45 steps, 1.997 epochs")
    assert lines["batch"] == "64 images, 4 x 16 at a time"


def test_precedence(tmp_path: Path) -> None:
    """Default < recipe < file < command line."""
    file = tmp_path / "settings.yaml"
    file.write_text("model: ViT-S/16\nbatch: 32\nseed: 3\noptim: {lr: 0.5, eps: 1e-6, clip: 7}\n")
    settings = {"optim.clip": "9", "augment": "light2", "augment.flip": "0"}
    config = configure(
        "digits",
        recipe="augreg:strong2",
        out=tmp_path,
        config_file=file,
        lr=0.25,
        steps=40_000,
        settings=settings,
    )
    assert config.patience == TrainConfig.patience
    assert (config.optim.weight_decay, config.schedule.warmup) == (0.1, Duration(10_000, "steps"))
    assert (config.batch, config.seed) == (32, 3)
    assert config.model == "ViT-S/16,representation=384"  # what the recipe builds of the file's
    assert (config.optim.lr, config.optim.eps, config.optim.clip) == (0.25, 1e-6, 9)
    assert config.length == Duration(40_000, "steps")
    assert (config.augment.mixup, config.augment.flip) == (0.2, 0)


def test_words_of_python_are_settings_or_refused(tmp_path: Path) -> None:
    words: dict[str, Any] = {"model": TINY, "steps": 40, "out": tmp_path}
    whole = Augment(crop="whole", flip=0.0)
    changes: list[dict[str, Any]] = [{"augment": whole}, {"settings": {"augment": whole}}]
    for given in changes:
        assert configure("digits", **words, **given).augment == whole
    words |= {"val_data": "shapes", "ema": 0.5}
    config = configure("digits", **words)
    assert (config.val_data, config.ema) == ("shapes", 0.5)
    words |= {"val_dta": "shapes"}
    with pytest.raises(InputError, match=r"unknown argument val_dta; did you mean 'val_data'"):
        configure("digits", **words)


def test_flags_that_only_go_together_may_come_in_any_order(tmp_path: Path) -> None:
    settings = [("mim.mask.replaced", "0.5"), ("mim.mask.masked", "0.25")]
    words: dict[str, Any] = {"out": tmp_path, "steps": 40_000, "recipe": "masked-patches"}
    for given in (dict(settings), dict(settings[::-1])):
        mask = configure("digits", model=TINY, settings=given, **words).mim.mask
        assert (mask.masked, mask.replaced) == (0.25, 0.5)
        bad = {"mim.mask.ratio": "2", **given}
        with pytest.raises(InputError, match=r"ratio must be in \(0, 1\), got 2"):
            configure("digits", model=TINY, settings=bad, **words)


def test_a_model_is_named_on_the_line_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('model = "ViT-S/16"\ndata = "elsewhere"\n')
    words: RunWords = {"out": tmp_path, "config_file": file, "image": "64x32"}
    words["recipe"] = "pretrain"
    config = configure("digits", model="ViT-B/16", **words)
    assert parse(config.model) == parse("ViT-B/16@64x32,dropout=0.1,representation=768")
    assert config.data == "digits"


@pytest.mark.parametrize("recipe", ["finetune:pets", "finetune"])
def test_a_size_that_is_given_wins_over_the_recipes(tmp_path: Path, recipe: str) -> None:
    """Also the usual 224, which a model's name leaves out."""
    for image, expected in ((None, 384), ("224", 224), ("448", 448)):
        config = configure("digits", model="ViT-B/16", recipe=recipe, out=tmp_path, image=image)
        assert parse(config.model).image == (expected, expected)


def test_only_a_recipes_own_warmup_is_shortened(tmp_path: Path) -> None:
    def warmup(epochs: float | None = None, settings: dict[str, str] | None = None) -> Duration:
        words: RunWords = {"out": tmp_path, "recipe": "plain", "epochs": epochs}
        words |= {"steps": None if epochs else 200, "settings": settings or {}}
        return configure("digits", model=TINY, **words).schedule.warmup

    assert warmup() == warmup(epochs=2) == Duration(5, "%")
    assert warmup(epochs=30_000) == Duration(10_000, "steps")
    assert warmup(settings={"schedule.warmup": "150 steps"}) == Duration(150, "steps")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--optim.momentun", "0.9"], "'optim.momentun'; did you mean 'optim.momentum'?"),
        (["--optim.lr", "much"], "optim.lr: expected a number, got 'much'"),
        (["--bach", "3"], "unknown option --bach; did you mean '--batch'"),
        (["--epoch", "3"], "unknown option --epoch; did you mean '--epochs'"),
        (["--settings", "3"], "unknown option --settings"),
        (["--no-calibrate"], "option --no-calibrate; did you mean '--no-calibration'?"),
        (["--no_calibrate"], "option --no_calibrate; did you mean '--no-calibration'?"),
        (["--dryrun"], "unknown option --dryrun; did you mean '--dry-run'?"),
        (["--no-raport=1"], "unknown option --no-raport; did you mean '--no-report'"),
        (["--ema"], "ema: expected a number, got 'true'"),
        (["--batch", "0"], "batch must be in [1, 1_000_000], got 0"),
        (["--steps", "3", "--epochs", "2"], "give --steps or --epochs, not both"),
        (["--steps", "0"], "length 0 steps is shorter than one step"),
        (["--recipe", "smal-data"], "unknown recipe 'smal-data'; did you mean 'small-data'"),
        (["--augment", "medium3"], "unknown augmentation 'medium3'; did you mean 'medium2'"),
        (["--config", "no.yaml"], "no.yaml: No such file"),
        (["--image", "9"], "does not split into 4x4 patches"),
        (["--batch", "99999999999999999999"], "batch must be in [1, 1_000_000], got 999"),
        (["--seed", "99999999999999999999"], "seed must be in [0, 4_294_967_295], got 999"),
        (["--folds", "99999999999999999999"], "there are only 1,442 images"),
        (["--weights", "nothing"], "no file or folder 'nothing'"),
    ],
)
def test_bad_input_gets_one_line_and_code_2(
    arguments: list[str], message: str, tmp_path: Path, capsys: Capture
) -> None:
    out = tmp_path / "run"
    code, said, err = run(capsys, *TRAIN, "--out", str(out), "--dry-run", *arguments)
    assert (code, said) == (2, "")
    assert message in err
    assert err.startswith("vitrail: ")
    assert err.count("\n") == 1
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "digits", "--out", "x"], "no model; give --model, such as ViT-S/16"),
        (["train", "nowhere", "--model", TINY, "--out", "x", "--dry-run"], "nowhere"),
        (["train", "digits", "--model", TINY, "--out", ""], "--out is empty"),
        (["finetune", "digits", "--out", "x"], "--weights"),
        (["finetune", "digits", "--weights", "run:none", "--out", "x"], "no run folder 'none'"),
    ],
)
def test_what_is_missing_gets_one_line_too(
    arguments: list[str], message: str, capsys: Capture
) -> None:
    code, said, err = run(capsys, *arguments)
    assert (code, said) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_a_mistake_in_a_file_names_the_file(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("optim: {momentun: 1}\nmodel: 5\n")
    arguments = ("train", "digits", "--out", str(tmp_path / "run"), "--config", str(file))
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert err.startswith(f"vitrail: {file}: unknown key 'optim.momentun'")
    assert "model: expected text, got 5" in err


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (Stopped(15, 3), 143, "SIGTERM: saved step 3"),
        (Stopped(2, 3), 130, "SIGINT: saved step 3"),
        (DivergedError("the loss is nan"), 1, "the loss is nan"),
        (WorkerError("data worker 7 was ended"), 1, "data worker 7 was ended"),
        (InputError("in use"), 2, "in use"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
    ids=["SIGTERM", "SIGINT", "NaN", "worker", "input", "Ctrl-C twice"],
)
def test_how_a_run_may_end(
    error: BaseException,
    code: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:
    def end(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr("vitrail.run.train", end)
    assert run(capsys, *TRAIN, "--out", "x") == (code, "", f"vitrail: {message}\n")


def test_what_nobody_expected_keeps_its_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def end(*_: Any, **__: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("vitrail.run.train", end)
    with pytest.raises(RuntimeError, match="a bug"):
        run(capsys, *TRAIN, "--out", "x")


@pytest.mark.parametrize("command", ["train", "finetune"])
def test_help_is_light_and_ends_with_where_the_rest_is(command: str, capsys: Capture) -> None:
    code = f"from vitrail.cli import main\ntry: main(['{command}', '--help'])\nexcept SystemExit: 0"
    assert not {"torch", "numpy"} & loaded_after(code)
    _, out, _ = run(capsys, command, "--help")
    assert out.endswith(f"{MORE}\n")


def sections() -> dict[str, Any]:
    """Name the settings that have settings of their own."""
    hints = get_type_hints(TrainConfig)
    found = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    del found["length"]  # a duration
    return found


def test_the_help_names_each_section() -> None:
    listed = re.findall(r"\w+", MORE[MORE.index("sections are") :].partition(".")[0])
    assert set(listed) - {"sections", "are", "and"} == set(sections())


def test_the_docs_list_each_setting_and_recipe() -> None:
    text = (DOCS / "settings.md").read_text(encoding="utf-8")
    names = [field.name for field in fields(TrainConfig) if field.name not in sections()]
    for section, kind in sections().items():
        names += [f"{section}.{field.name}" for field in fields(kind)]
    cells = "".join(line.split("|")[1] for line in text.splitlines() if line.startswith("| `"))
    assert sorted(re.findall(r"`(.+?)`", cells)) == sorted(names)
    text = (DOCS / "recipes.md").read_text(encoding="utf-8")
    assert [name for name in RECIPES if f"`{name}`" not in text] == []
