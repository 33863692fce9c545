"""Finished runs: what is refused changes nothing of them, what is damaged is not believed."""

import json
import shlex
import shutil
from collections.abc import Callable
from contextlib import chdir
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.faults.toy import MODEL, leftovers, print_of, steps
from tests.runs import train
from vitrail.cli import main
from vitrail.config import InputError
from vitrail.data.loader import LoaderConfig
from vitrail.deploy.exporting.hub_export import make_card
from vitrail.report.run_sections import read_run
from vitrail.run import TrainConfig
from vitrail.studies.engine.run_table import show_sweep
from vitrail.training.checkpoints.run_folder import write_result
from vitrail.training.optimization.optim import OptimConfig
from vitrail.training.optimization.schedule import ScheduleConfig
from vitrail.weights.load import load
from vitrail.weights.model_folder import load_folder

PLAIN = MODEL.replace(",channels=1", "")


def add_photos(folder: Path, name: str, first: int, count: int) -> None:
    (folder / name).mkdir(parents=True, exist_ok=True)
    for number in range(first, first + count):
        rng = np.random.default_rng(number)
        pixels = rng.integers(0, 256, (8, 8, 3), np.uint8)
        Image.fromarray(pixels).save(folder / name / f"{number}.png")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make photos of two classes, and a finished run on them."""
    here = tmp_path_factory.mktemp("finished")
    for number, name in enumerate(("cat", "dog")):
        add_photos(here / "photos", name, 100 * number, 12)
    with chdir(here):
        assert train(config_of(Path())).ending == "finished"
    return here


@pytest.fixture
def here(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copy them, for each test to change."""
    shutil.copytree(finished, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    return Path()


def config_of(here: Path, **changes: Any) -> TrainConfig:
    settings = TrainConfig(
        data="photos",
        model=PLAIN,
        out=here / "run",
        length=steps(4),
        batch=8,
        optim=OptimConfig(lr=3e-3),
        save_every=steps(2),
        loader=LoaderConfig(workers=0),
        loggers=(),
    )
    return replace(settings, **changes)


def contents(folder: Path) -> dict[str, bytes | None]:
    """Read all files; the log may say that a run was refused."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
        if path.name != "log.txt"
    }


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


class Closed:
    """A logger that can't be opened."""

    def __init__(self, folder: Path, step: int) -> None:
        raise OSError("no connection")


def wider(model: Any) -> Any:
    model.extra = type(model.norm)(4)
    return model


def edit_result(run: Path) -> None:
    result = json.loads((run / "result.json").read_text())
    (run / "result.json").write_text(json.dumps({**result, "top1": 0.9}))


def rename_setting(path: Path) -> None:
    path.write_text(path.read_text().replace("optim:", "opuim:"))


Spoil = Callable[[Path], object]
REFUSED: dict[str, tuple[Spoil, dict[str, Any], str]] = {
    "more photos": (lambda run: add_photos(Path("photos"), "cat", 50, 2), {}, "are new"),
    "fewer photos": (lambda run: [each.unlink() for each in Path("photos/dog").glob("10?.png")],
                     {}, "are gone"),
    "another class": (lambda run: add_photos(Path("photos"), "emu", 300, 9), {}, "are new"),
    "settings": (lambda run: None, {"batch": 4}, "batch 8 → 4"),
    "no checkpoint": (lambda run: shutil.rmtree(run / "checkpoints"), {}, "has no checkpoint"),
    "last damaged": (lambda run: damage(run / "checkpoints/step-00000004/tensors.safetensors"),
                     {}, "has no checkpoint of its last step"),
    "all damaged": (lambda run: [damage(each) for each in run.rglob("manifest.json")],
                    {}, "no usable checkpoint"),
    "edited": (edit_result, {}, "was changed since the run wrote it"),
    "record": (lambda run: (run / "run.json").write_text("{"), {}, "not written by this vitrail"),
    "config": (lambda run: (run / "config.yaml").write_text("data: ["), {}, "config.yaml"),
    "setting": (lambda run: rename_setting(run / "config.yaml"), {},
                r"run/config\.yaml: unknown key 'opuim'"),
    "stranger": (lambda run: (run / "model/mine.txt").touch(), {}, "mine.txt"),
    "no log": (lambda run: ((run / "log.txt").unlink(), (run / "log.txt").mkdir()),
               {}, "log.txt: cannot be written"),
    "no metrics": (lambda run: ((run / "metrics.jsonl").unlink(), (run / "metrics.jsonl").mkdir()),
                   {}, "metrics.jsonl: cannot be read"),
    "no steps": (lambda run: None, {"more": steps(0)}, "shorter than one step"),
    "data gone": (lambda run: shutil.rmtree("photos"), {}, "photos"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_leaves_a_finished_run_as_it_was(here: Path, case: str) -> None:
    spoil, changes, said = REFUSED[case]
    spoil(here / "run")
    before = contents(here / "run")
    with pytest.raises(InputError, match=said):
        train(config_of(here, **{"more": steps(2), **changes}))
    assert contents(here / "run") == before


@pytest.mark.parametrize(
    ("given", "said"),
    [({"loggers": [Closed]}, "no connection"), ({"model": wider}, "parts.model|another model")],
)
def test_parts_that_are_refused_leave_it_as_it_was(
    here: Path, given: dict[str, Any], said: str
) -> None:
    before = contents(here / "run")
    with pytest.raises(InputError, match=said):
        train(config_of(here, more=steps(2)), **given)
    assert contents(here / "run") == before


@pytest.mark.parametrize("case", ["more photos", "all damaged", "no metrics"])
def test_an_unfinished_run_that_is_refused_stays_as_it_was(here: Path, case: str) -> None:
    (here / "run/result.json").unlink()
    spoil, _, said = REFUSED[case]
    spoil(here / "run")
    before = contents(here / "run")
    with pytest.raises(InputError, match=said):
        train(config_of(here, log_every=1))  # which a resumed run may change
    assert contents(here / "run") == before


def test_the_command_that_is_named_goes_on_with_more_photos(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Classes are known by name: dog's row of the head moves behind that of the new one."""
    add_photos(here / "photos", "cow", 200, 8)
    old = print_of(here / "run")
    with pytest.raises(InputError) as caught:
        train(config_of(here, more=steps(2), schedule=ScheduleConfig()))
    words = shlex.split(str(caught.value).partition("go on from it: ")[2])
    assert words == shlex.split(
        "vitrail train --config run/config.yaml --weights run:run --length '2 steps' --out run-2"
    )
    main([*words[1:], "--optim.lr", "0", "--ema", "0"])  # so that nothing is learned
    assert "run-2" in capsys.readouterr().out
    ours, theirs = (load_folder(here / name / "model") for name in ("run-2", "run"))
    assert (ours.classes, theirs.classes) == (("cat", "cow", "dog"), ("cat", "dog"))
    kept = ours.tensors["head.output.weight"][[0, 2]]
    assert kept.equal(theirs.tensors["head.output.weight"])
    assert not ours.tensors["head.output.weight"][1].any()
    assert print_of(here / "run") == old


def test_a_continued_run_is_repeated_by_its_settings_and_gone_on_from(here: Path) -> None:
    assert train(config_of(here, more=steps(2))).steps == 6
    add_photos(here / "photos", "cat", 50, 2)
    with pytest.raises(InputError) as caught:
        train(config_of(here, more=steps(3)))
    main(shlex.split(str(caught.value).partition("go on from it: ")[2])[1:])
    assert json.loads((here / "run-2/result.json").read_text())["steps"] == 3


def test_an_edited_result_is_not_believed_anywhere(here: Path) -> None:
    whole = json.loads((here / "run/result.json").read_text())
    edit_result(here / "run")
    readers: list[Callable[[], object]] = [
        lambda: train(config_of(here)),
        lambda: show_sweep("run"),
        lambda: read_run(here / "run"),
        lambda: make_card(load_folder(here / "run/model"), "x", "vitrail", here / "run"),
    ]
    for read in readers:
        with pytest.raises(InputError, match=r"run/result\.json"):
            read()
    (here / "run/result.json").unlink()
    assert train(config_of(here)).top1 == whole["top1"]  # from the last checkpoint
    healed = json.loads((here / "run/result.json").read_text())
    assert {**healed, "machine": 0} == {**whole, "machine": 0}


def test_a_result_of_an_older_version_is_read(here: Path) -> None:
    result = json.loads((here / "run/result.json").read_text())
    assert result.pop("checksum")
    (here / "run/result.json").write_text(json.dumps(result))
    assert train(config_of(here)).top1 == result["top1"]


def test_a_nan_is_sealed_too(tmp_path: Path) -> None:
    write_result(tmp_path, {"ending": "finished", "steps": 1, "loss": float("nan"), "folder": "."})
    assert np.isnan(read_result_of(tmp_path)["loss"])


def read_result_of(folder: Path) -> dict[str, Any]:
    from vitrail.training.checkpoints.run_folder import read_result

    return read_result(folder / "result.json")


def weights_gone(run: Path) -> None:
    (run / "model/model.safetensors").unlink()


MODELS: dict[str, Spoil] = {
    "weights gone": weights_gone,
    "weights damaged": lambda run: damage(run / "model/model.safetensors"),
    "record gone": lambda run: (run / "model/model.json").unlink(),
    "record damaged": lambda run: damage(run / "model/model.json"),
    "all gone": lambda run: shutil.rmtree(run / "model"),
    "empty": lambda run: [each.write_bytes(b"") for each in (run / "model").iterdir()],
}


@pytest.mark.parametrize(
    ("case", "unfinished"), [*((case, False) for case in MODELS), ("record damaged", True)]
)
def test_a_model_folder_that_is_not_whole_is_written_again(
    here: Path, case: str, unfinished: bool, caplog: pytest.LogCaptureFixture
) -> None:
    before = print_of(here / "run")
    MODELS[case](here / "run")
    if unfinished:
        (here / "run/result.json").unlink()
        shutil.rmtree(here / "run/checkpoints/step-00000004")
    train(config_of(here))
    assert ("written again from the checkpoint of step 4" in caplog.text) != unfinished
    assert print_of(here / "run") == before
    load("run:run")


@pytest.mark.parametrize("case", ["weights gone", "record damaged"])
def test_a_best_model_that_is_lost_is_not_recommended(here: Path, case: str) -> None:
    config = config_of(here, out=here / "best", keep="best", eval_every=steps(1))
    train(config)
    MODELS[case](here / "best")
    before = contents(here / "best")
    with pytest.raises(InputError, match=r"no checkpoint has its weights: use --restart"):
        train(config)
    assert contents(here / "best") == before


@pytest.mark.parametrize("stage", ["before the first rename", "between", "after"])
def test_what_a_kill_left_beside_a_finished_model_goes_at_the_next_command(
    here: Path, stage: str
) -> None:
    """As a kill while the calibrated model takes the place of the other one leaves it."""
    model, run = here / "run/model", here / "run"
    before = print_of(run)
    new, old = run / ".model.new-abcd1234", run / ".model.old-abcd1234"
    match stage:
        case "before the first rename":
            shutil.copytree(model, new)
        case "between":
            shutil.copytree(model, new)
            model.rename(old)
        case "after":
            shutil.copytree(model, old)
            (old / "model.json").unlink()
    train(config_of(here))
    assert not leftovers(run)
    assert print_of(run) == before
