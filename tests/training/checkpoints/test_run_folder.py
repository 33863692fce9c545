"""The folder of a run: what a resumed one may change, what begins anew, files that are whole."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.faults.toy import MODEL, TOY, steps, toy
from vitrail.config import InputError, from_dict, read_file
from vitrail.data.cache import CacheConfig
from vitrail.data.loader import LoaderConfig
from vitrail.files import write_whole
from vitrail.training.checkpoints.checkpoint_files import write_checkpoint
from vitrail.training.checkpoints.resume import find_checkpoint
from vitrail.training.checkpoints.run_folder import (
    check_folder,
    identify_run,
    prepare_folder,
)
from vitrail.training.losses import LossConfig
from vitrail.training.optimization.schedule import ScheduleConfig
from vitrail.training.peft import TuneConfig
from vitrail.training.train_config import FREE, FewShotConfig, TrainConfig, free_settings


def begin(config: TrainConfig) -> None:
    """Begin a run, and save a state."""
    assert prepare_folder(config, restart=False) is None
    write_checkpoint(config.out / "checkpoints", 1, {}, lambda new: None)


BINDING: dict[str, tuple[dict[str, Any], str]] = {
    "data": ({"data": "shapes"}, "data digits → shapes"),
    "width": ({"model": MODEL.replace("32", "64")}, f"model {MODEL} → {MODEL.replace('32', '64')}"),
    "patch": ({"model": MODEL.replace("/4", "/8")}, f"model {MODEL} → {MODEL.replace('/4', '/8')}"),
    "weights": ({"weights": "x.npz"}, "weights None → x.npz"),
    "length": ({"length": steps(99)}, "length 10 steps → 99 steps"),
    "batch": ({"batch": 32}, "batch 16 → 32"),
    "lr": ({"optim": replace(TOY.optim, lr=1e-5)}, "optim.lr 0.003 → 1e-05"),
    "decay": ({"optim": replace(TOY.optim, weight_decay=0.0)}, "optim.weight_decay 0.1 → 0.0"),
    "schedule": (
        {"schedule": ScheduleConfig(kind="linear")},
        "schedule.kind cosine → linear",
    ),
    "loss": ({"loss": LossConfig(smoothing=0.1)}, "loss.smoothing 0.0 → 0.1"),
    "tune": ({"tune": TuneConfig(mode="head")}, "tune.mode all → head"),
    "ema": ({"ema": 0.0}, "ema 0.9 → 0.0"),
    "seed": ({"seed": 6}, "seed 5 → 6"),
    "precision": ({"precision": "bfloat16"}, "precision auto → bfloat16"),
    "mixup": (
        {"augment": replace(TOY.augment, mixup=0.0)},
        "augment.mixup 0.2 → 0.0",
    ),
    "no randaugment": (
        {"augment": replace(TOY.augment, randaugment=None)},
        "augment.randaugment.layers 2 → None, augment.randaugment.magnitude 10.0 → None, "
        "augment.randaugment.operations big_vision → None, "
        "augment.randaugment.probability 1.0 → None, "
        "augment.randaugment.magnitude_std 0.0 → None",
    ),
    "two": (
        {"batch": 8, "optim": replace(TOY.optim, kind="sgd")},
        "batch 16 → 8, optim.kind adamw → sgd",
    ),
    "cache": (
        {"cache": CacheConfig(limit=1.0, short_side=9)},
        "cache.limit 0.0 → 1.0, cache.short_side None → 9",
    ),
}


@pytest.mark.parametrize("case", BINDING)
def test_settings_that_decide_the_result_are_refused_with_a_diff(tmp_path: Path, case: str) -> None:
    begin(toy(tmp_path))
    before = (tmp_path / "config.yaml").read_bytes()
    changes, said = BINDING[case]
    with pytest.raises(InputError) as caught:
        prepare_folder(toy(tmp_path, **changes), restart=False)
    assert str(caught.value) == (
        f"cannot resume: {said}; use --restart to begin again, or another --out"
    )
    assert (tmp_path / "config.yaml").read_bytes() == before


FREELY: dict[str, Any] = {
    "device": "cpu",
    "micro_batch": 3,
    "sharding": "full",
    "checkpointing": True,
    "checkpoint_every": 2,
    "compile": True,
    "loader": LoaderConfig(workers=7, kind="processes", prefetch=1),
    "cache": CacheConfig(limit=3.0, folder=Path("there")),
    "max_unreadable": 0.5,
    "eval_every": steps(7),
    "save_every": steps(8),
    "log_every": 9,
    "loggers": ("tensorboard",),
    "fewshot": FewShotConfig(data="digits", shots=(1, 2)),
    "more": steps(5),
    "more_from": 2,
    "hold_out_of": "train",
    "test_data": "digits",
}


@pytest.mark.parametrize("name", FREELY)
def test_settings_that_decide_nothing_are_taken(tmp_path: Path, name: str) -> None:
    needed = {"checkpoint_every": {"checkpointing": True}, "hold_out_of": {"hold_out": 0.2}}
    used: dict[str, Any] = needed.get(name, {})
    begin(toy(tmp_path, **used))
    changed = toy(tmp_path, **used, **{name: FREELY[name]})
    assert prepare_folder(changed, restart=False) is None
    assert from_dict(TrainConfig, read_file(tmp_path / "config.yaml")) == changed


def test_each_free_setting_is_tried() -> None:
    assert {name.partition(".")[0] for name in FREE} == {*FREELY, "out"}


def test_a_moved_run_goes_on(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    begin(toy(tmp_path / "old"))
    (tmp_path / "old").rename(tmp_path / "new")
    assert prepare_folder(toy(tmp_path / "new"), restart=False) is None


@pytest.mark.parametrize(
    "bound", [{"patience": 3}, {"keep": "best"}, {"cache": CacheConfig(limit=1.0, short_side=9)}]
)
def test_what_is_free_depends_on_the_rest(tmp_path: Path, bound: dict[str, Any]) -> None:
    """Whoever counts evaluations depends on when they are, and who shrinks images, on which."""
    begin(toy(tmp_path, **bound))
    change: dict[str, Any] = {"eval_every": steps(7)}
    said = "eval_every 4 steps → 7 steps"
    if "cache" in bound:
        change = {"cache": CacheConfig(limit=2.0, short_side=9)}
        said = "cache.limit 1.0 → 2.0"
    with pytest.raises(InputError, match=f"^cannot resume: {said};"):
        prepare_folder(toy(tmp_path, **{**bound, **change}), restart=False)
    assert free_settings(TOY) == set(FREE)


def test_a_call_that_failed_before_its_first_state_binds_nobody(tmp_path: Path) -> None:
    """A misspelt name must not have to be cleared away."""
    assert prepare_folder(toy(tmp_path, data="digitz"), restart=False) is None
    assert prepare_folder(toy(tmp_path), restart=False) is None
    assert read_file(tmp_path / "config.yaml")["data"] == "digits"


def test_a_first_save_that_was_killed_binds_nobody(tmp_path: Path) -> None:
    prepare_folder(toy(tmp_path), restart=False)
    (tmp_path / "checkpoints" / ".step-00000003.new-01234567").mkdir(parents=True)
    assert prepare_folder(toy(tmp_path, seed=6), restart=False) is None
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_states_without_settings_are_refused(tmp_path: Path) -> None:
    begin(toy(tmp_path))
    (tmp_path / "config.yaml").unlink()
    with pytest.raises(InputError, match=r"config\.yaml: No such file"):
        prepare_folder(toy(tmp_path), restart=False)


def test_a_setting_that_an_older_version_had_not_is_its_default(tmp_path: Path) -> None:
    begin(toy(tmp_path))
    path = tmp_path / "config.yaml"
    lines = [line for line in path.read_text().splitlines() if not line.startswith("patience")]
    path.write_text("\n".join(lines))
    assert prepare_folder(toy(tmp_path), restart=False) is None
    path.write_text("\n".join(lines))
    with pytest.raises(InputError, match=r"cannot resume: patience 0 → 2;"):
        prepare_folder(toy(tmp_path, patience=2), restart=False)


def test_a_finished_run_gives_what_it_reached_under_its_settings_only(tmp_path: Path) -> None:
    prepare_folder(toy(tmp_path), restart=False)
    (tmp_path / "result.json").write_text(json.dumps({"ending": "finished", "steps": 10}))
    before = (tmp_path / "config.yaml").read_bytes()
    reached = prepare_folder(toy(tmp_path, log_every=1), restart=False)
    assert reached == {"ending": "finished", "steps": 10}
    assert (tmp_path / "config.yaml").read_bytes() == before
    with pytest.raises(InputError, match=r"cannot resume: seed 5 → 6"):
        prepare_folder(toy(tmp_path, seed=6), restart=False)


def test_a_restart_forgets_all_of_the_old_run_and_nothing_else(tmp_path: Path) -> None:
    begin(toy(tmp_path))
    for name in ("result.json", "bad_batch_7.txt", "mine.txt"):
        (tmp_path / name).write_text("{}")
    for name in ("model", "tensorboard"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_text("x")
    assert prepare_folder(toy(tmp_path, seed=6), restart=True) is None
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["config.yaml", "mine.txt", "run.json"]
    assert read_file(tmp_path / "config.yaml")["seed"] == 6


STRANGERS = ("config.yaml", "metrics.jsonl", "report.html", "model/mine.txt", "tensorboard/mine")


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("name", STRANGERS)
def test_what_no_run_wrote_is_neither_removed_nor_overwritten(
    tmp_path: Path, name: str, restart: bool
) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("mine")
    said = "is not a run folder" if restart else "which no run of vitrail wrote"
    for check in (check_folder, prepare_folder):
        with pytest.raises(InputError, match=f"^{tmp_path} .*{said}.*; choose another --out$"):
            check(toy(tmp_path), restart=restart)
    assert [each for each in tmp_path.rglob("*") if each.is_file()] == [path]
    assert path.read_text() == "mine"


def test_a_restart_removes_nothing_that_the_manifest_does_not_list(tmp_path: Path) -> None:
    begin(toy(tmp_path))
    record = json.loads((tmp_path / "run.json").read_text())
    record["files"] = [*(set(record["files"]) - {"model"}), "../outside", "mine.txt"]
    (tmp_path / "run.json").write_text(json.dumps(record))
    (tmp_path / "model").mkdir()
    (tmp_path / "mine.txt").touch()
    prepare_folder(toy(tmp_path), restart=True)
    assert (tmp_path / "model").is_dir()
    assert (tmp_path / "mine.txt").exists()
    assert not (tmp_path / "checkpoints").exists()


def test_a_run_folder_of_the_old_layout_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "states").mkdir()
    (tmp_path / "config.yaml").write_text("data: digits")
    with pytest.raises(InputError, match=r"is a run folder of an older version \(states/\), which"):
        check_folder(toy(tmp_path))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", r"result\.json: Expecting"),
        ("[]", "keys and values"),
        ("{}", "not the result of a run"),
    ],
)
def test_a_result_that_cannot_be_read_is_one_line(tmp_path: Path, content: str, said: str) -> None:
    begin(toy(tmp_path))
    (tmp_path / "result.json").write_text(content)
    with pytest.raises(InputError, match=f"{said}.*; use --restart to begin again"):
        check_folder(toy(tmp_path))


def test_checkpoints_that_are_a_file_are_refused(tmp_path: Path) -> None:
    prepare_folder(toy(tmp_path), restart=False)
    (tmp_path / "checkpoints").touch()
    with pytest.raises(InputError, match="checkpoints is a file, not a folder; use --restart"):
        check_folder(toy(tmp_path))
    assert prepare_folder(toy(tmp_path), restart=True) is None


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    one, two = toy(tmp_path / "one"), toy(tmp_path / "two")
    for config in (one, two):
        config.out.mkdir()
        prepare_folder(config, restart=False)
    noted = {**identify_run(one), "data": {}}
    write_checkpoint(one.out / "checkpoints", 3, noted, lambda new: None)
    found = find_checkpoint(one, {})
    assert found is not None
    assert found.step == 3
    (one.out / "checkpoints").rename(two.out / "checkpoints")
    with pytest.raises(InputError, match=r"step-00000003 belongs to another run \(id "):
        find_checkpoint(two, {})
    (two.out / "checkpoints").rename(one.out / "checkpoints")
    with pytest.raises(InputError, match="was saved with other settings"):
        find_checkpoint(replace(one, batch=8), {})
    assert find_checkpoint(replace(one, device="cpu"), {}) is not None


def test_a_file_is_written_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file.txt"
    write_whole(path, "first ö\n")
    assert path.read_bytes() == "first ö\n".encode()

    def fail(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(InputError, match=r"file\.txt: cannot be written: No space left on device$"):
        write_whole(path, "second")
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [
        ("file.txt", "first ö\n")
    ]
