"""`vitrail finetune --protocol paper` as a user meets it, on embedded digits."""

import json
from pathlib import Path
from typing import Any

import pytest

import vitrail
from tests.commands import run
from tests.faults.toy import steps, toy
from tests.runs import train
from vitrail.config import InputError, read_file

Capture = pytest.CaptureFixture[str]
SHORT = ("--protocol", "paper", "--steps", "8", "--batch", "16", "--seeds", "2")
QUICK = ("--loader.workers", "0", "--loggers", "", "--val-split", "test")


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("weights") / "run"
    train(toy(out, length=steps(2)))
    return f"run:{out}"


def finetune(capsys: Capture, weights: str, out: Path, *more: str) -> tuple[int, str, str]:
    where = ("--weights", weights, "--out", str(out))
    return run(capsys, "finetune", "digits", *where, *SHORT, *QUICK, *more)


def test_the_command(weights: str, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "run"
    code, said, err = finetune(capsys, weights, out, "--rates", "0.01", "0.03", "--json")
    assert code == 0, err
    found: dict[str, Any] = json.loads(said)
    assert list(found) == ["run", "trials", "lr", "top1", "std", "runs"]
    assert found["run"] == str(out)
    assert [trial["lr"] for trial in found["trials"]] == [0.01, 0.03]
    assert [one["run"] for one in found["runs"]] == [str(out / "seed-0"), str(out / "seed-1")]
    assert all((one["steps"], one["images"]) == (8, 355) for one in found["runs"])
    assert "grid: lr 0.01, up to 25 %" in err
    config = read_file(out / "seed-1" / "config.yaml")
    assert (config["batch"], config["length"], config["seed"]) == (16, "8 steps", 1)
    lines = (out / "seed-1" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines if "val/top1" in line] == [8]  # seen once
    code, said, _ = finetune(capsys, weights, out, "--rates", "0.01", "0.03")
    assert code == 0
    mean, std = 100 * found["top1"], 100 * found["std"]
    last = f"{out}: lr {found['lr']:g}, top-1 {mean:.2f} ± {std:.2f} % of 2 runs"
    assert said.splitlines()[-1] == last


def test_a_dry_run_plans_all_runs(weights: str, tmp_path: Path, capsys: Capture) -> None:
    code, said, err = finetune(capsys, weights, tmp_path / "run", "--dry-run", "--json")
    assert code == 0, err
    plan = json.loads(said)
    assert (plan["rates"], plan["seeds"]) == ([0.001, 0.003, 0.01, 0.03], [0, 1])
    assert (plan["rungs"], plan["held_out"], plan["measured"]) == ([2, 4], 145, 355)
    assert (plan["trial"]["images"], plan["final"]["images"]) == (1442 - 145, 1442)
    grid = [str(tmp_path / "run" / "grid" / f"lr-{rate}") for rate in plan["rates"]]
    assert plan["folders"] == [*grid, *(str(tmp_path / "run" / f"seed-{n}") for n in (0, 1))]
    seconds = 4 * plan["trial"]["seconds"] + 2 * plan["final"]["seconds"]
    assert plan["seconds"] == pytest.approx(seconds)
    code, said, _ = finetune(capsys, weights, tmp_path / "run", "--dry-run")
    assert code == 0
    first = "grid     4 runs at 0.001, 0.003, 0.01, 0.03; hopeless ones end at step 2 and 4"
    assert said.splitlines()[0] == first
    assert "evaluated on 355" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--lr", "0.1"), "give --rates instead of --lr"),
        (("--optim.lr", "0.1"), "give --rates instead of --lr"),
        (("--rates", "0.1", "0.1"), "each once, got 0.1, 0.1"),
        (("--seeds", "0"), "at least one seed, got 0"),
        (("--keep", "best"), "leave --keep and --patience out"),
        (("--hold-out", "0.1"), "leave out --hold-out and --val-split"),
        (("--protocol", "mine"), "'mine'"),
    ],
)
def test_bad_input_gets_one_line_and_code_2(
    weights: str, tmp_path: Path, capsys: Capture, more: tuple[str, ...], message: str
) -> None:
    code, said, err = finetune(capsys, weights, tmp_path / "run", *more)
    assert (code, said) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_rates_need_the_protocol(weights: str, tmp_path: Path, capsys: Capture) -> None:
    arguments = ("--weights", weights, "--out", str(tmp_path / "run"), "--rates", "0.1")
    code, _, err = run(capsys, "finetune", "digits", *arguments)
    assert code == 2
    assert "--rates requires --protocol paper" in err


def test_the_protocol_takes_no_data_object(tmp_path: Path) -> None:
    data = vitrail.open_data("digits")
    with pytest.raises(InputError, match="the protocol opens data, weights and parts for each run"):
        vitrail.finetune(
            data, weights="w", model="ViT-Ti/16", protocol="paper", out=tmp_path / "run"
        )
    assert not (tmp_path / "run").exists()
