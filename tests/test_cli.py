"""The command as a user meets it: results on stdout; if wrong, one line on stderr and code 2."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitrail
from tests.commands import run
from tests.evaluation.sets import save_tiny
from tests.material import ROOT
from vitrail.cli import COMMANDS, main
from vitrail.config import Duration
from vitrail.models import NAMES, parse
from vitrail.models.cost.total import cost_of
from vitrail.studies.demonstration import DemoResult, DemoRow
from vitrail.training.train_config import TrainConfig


def test_models_lists_all_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "models", "--json")
    rows = json.loads(out)
    assert (code, err) == (0, "")
    assert [row["name"] for row in rows] == list(NAMES)
    assert rows[NAMES.index("ViT-B/16")] == {
        "name": "ViT-B/16",
        "parameters": 86_567_656,
        "macs": 17_563_828_224,
        "tokens": 197,
    }


def test_models_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "models")
    assert code == 0
    (line,) = (line for line in out.splitlines() if "ViT-H/14" in line)
    assert line.split() == ["ViT-H/14", "632,045,800", "167.295", "257"]


def test_describe_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["R50+ViT-B/16", "--classes", "10", "--image", "384x256", "--batch", "4", "--json"]
    code, out, _ = run(capsys, "describe", *arguments)
    result = json.loads(out)
    expected = cost_of(parse("R50+ViT-B/16,classes=10"), image=(384, 256), batch=4)
    assert code == 0
    assert result["name"] == "R50+ViT-B/16"
    assert result["image"] == [384, 256]
    assert (result["classes"], result["tokens"]) == (10, 385)
    for key in ("parameters", "macs", "flops", "training_flops", "activation_bytes"):
        assert result[key] == getattr(expected, key)
    assert sum(row["macs"] for row in result["rows"]) == result["macs"]


def test_describe_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "describe", "ViT-B/16", "--batch", "8")
    assert code == 0
    assert "block x 12" in out
    assert "86,567,656 (330.2 MiB as float32)" in out
    assert "17.564 GMACs per image (35.128 GFLOPs)" in out
    kept = cost_of(parse("ViT-B/16"), batch=8).activation_bytes / 2**20
    assert f"{kept:.1f} MiB activations at batch 8" in out


def test_describe_keeps_the_names_own_classes(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "describe", "ViT-B/16,classes=7", "--json")
    assert json.loads(out)["classes"] == 7


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["describe", "ViT-X/16"], "unknown model 'ViT-X/16'; did you mean"),
        (["describe"], "NAME"),
        (["describe", "ViT-B/16", "--bach", "3"], "perhaps you meant --batch"),
        (["describe", "ViT-B/16", "--batch", "q"], "--batch"),
        (["describe", "ViT-B/16", "--batch", "0"], "--batch must be at least 1, got 0"),
        (["describe", "ViT-B/16", "--image", "100"], "does not split into 16x16 patches"),
        (["describe", "ViT-B/16", "--image", "a"], "'a' is not a size"),
        (["describe", "ViT-B/16", "--classes", "-3"], "classes must be at least 0, got -3"),
        (["descrbe"], "unknown command 'descrbe'; did you mean 'describe'?"),
        (["xyz"], "there are: models, describe, convert"),
        (["data"], "'data' is the first word of: data check, data fetch, data list, data show"),
        (["weights", "--help"], "'weights' is the first word of: weights show, weights list"),
        (["models", "extra"], "extra"),
    ],
)
def test_bad_input_gets_one_line_and_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.startswith("vitrail: ")
    assert err.count("\n") == 1


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["--help"], ["-h"]):
        code, out, _ = run(capsys, *arguments)
        assert code == 0
        for name, command in COMMANDS.items():
            assert f"  {name} " in out
            assert (command.__doc__ or "").partition("\n")[0] in out


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help_with_an_example(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    code, out, _ = run(capsys, command, "--help")
    assert code == 0
    assert f"Example: vitrail {command}" in out
    assert not re.search(r"\bNone\b|default: \)", out)


def test_help_breaks_lines_where_they_are_full(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not where the source does."""
    monkeypatch.setenv("COLUMNS", "200")
    _, out, _ = run(capsys, "predict", "--help")
    assert "measures once per model and machine which is fastest" in out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--version") == (0, f"vitrail {vitrail.__version__}\n", "")


def test_demo_trains_transfers_and_compares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("vitrail.studies.demonstration._STEPS", Duration(3, "steps"))
    monkeypatch.setattr("vitrail.studies.demonstration._FEW", Duration(2, "steps"))
    monkeypatch.setattr("vitrail.studies.demonstration._CHARACTERS", 640)
    shape = "depth=1,width=24,heads=2,mlp=48,pool=gap"
    monkeypatch.setattr("vitrail.studies.demonstration._LOW", f"ViT/4@24,{shape}")
    monkeypatch.setattr("vitrail.studies.demonstration._HIGH", f"ViT/4@32,{shape}")
    monkeypatch.setattr("vitrail.studies.demonstration._SEEDS", 2)
    code, out, err = run(capsys, "demo", "--out", str(tmp_path), "--json")
    found = json.loads(out)
    ways = [found[name] for name in ("pretrained", "frozen", "finetuned", "scratch")]
    assert code == 0
    assert [way["labels"] for way in ways] == [640, 100, 100, 100]
    assert [way["steps"] for way in ways] == [3, None, 2, 2]
    assert [len(way["top1"]) for way in ways] == [1, 2, 2, 2]
    tuned, scratch = (sum(found[name]["top1"]) / 2 for name in ("finetuned", "scratch"))
    assert found["gain"] == pytest.approx(100 * (tuned - scratch))
    assert "4 of 4" in err
    assert "attention" in Path(found["report"]).read_text(encoding="utf-8")
    for seed in range(2):
        result = json.loads((tmp_path / f"finetune-{seed}" / "result.json").read_text())
        assert result["top1"] == found["finetuned"]["top1"][seed]
    model = vitrail.load(f"run:{tmp_path / 'finetune-1'}")
    assert (model.model.spec.image, model.model.spec.classes) == ((32, 32), 10)
    assert model.provenance is not None
    assert any("resized" in change for change in model.provenance.changes)


def test_the_last_screen_of_the_demo_fits_a_terminal() -> None:
    way = DemoRow("digits, frozen features", 100_000, 600, (0.9, 0.8))
    report = Path("runs/demo/finetune-0/report.html")
    lines = [*DemoResult(way, way, way, way, Path("runs/demo"), report).summary()]
    texts = [line for line in lines if isinstance(line, str)]
    assert max(map(len, texts)) <= 80
    assert len(texts) + 7 <= 24  # and the table: its head, a rule, four rows, an empty line
    commands = [text.split()[1] for text in texts if text.startswith("  vitrail ")]
    assert commands == ["finetune", "predict", "serve"]


def test_the_docs_show_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    shown = re.findall(r"```console\n\$ vitrail (.*?)\n(.*?)```", page, flags=re.DOTALL)
    assert shown
    for command, text in shown:
        _, out, _ = run(capsys, *command.split())
        assert [line.rstrip() for line in out.splitlines()] == text.splitlines()


def test_installed_command_and_module_answer() -> None:
    script = Path(sys.executable).parent / "vitrail"
    for command in ([str(script)], [sys.executable, "-m", "vitrail"]):
        done = subprocess.run([*command, "describe", "ViT-Q/16"], capture_output=True, text=True)
        assert done.returncode == 2
        assert done.stderr.startswith("vitrail: unknown model 'ViT-Q/16'")


def test_a_closed_pipe_is_no_traceback() -> None:
    script = f"{sys.executable} -m vitrail models | head -n 1"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
    assert done.stderr == ""


def answer_into(stdout: int, *arguments: str, **environment: str) -> tuple[int, str]:
    """Run the command as users do, its output kept back until there is much of it."""
    usual = {name: text for name, text in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        [sys.executable, "-m", "vitrail", *arguments],
        stdout=stdout,
        stderr=subprocess.PIPE,
        env=usual | environment,
    )
    return done.returncode, done.stderr.decode()


@pytest.mark.parametrize("arguments", [["--version"], ["models", "--help"], ["models"]])
def test_a_closed_pipe_is_noticed_by_short_answers_too(arguments: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        assert answer_into(writing, *arguments) == (1, "")
    finally:
        os.close(writing)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize("arguments", [["--version"], ["models"]])
def test_a_full_disk_under_the_answer_gets_one_line(arguments: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        code, err = answer_into(full.fileno(), *arguments)
    assert (code, err) == (1, "vitrail: No space left on device\n")


def test_help_is_there_where_the_terminal_lacks_its_characters() -> None:
    command = [sys.executable, "-m", "vitrail", "--help"]
    plain = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, text=True, env=plain)
    assert (done.returncode, done.stderr) == (0, "")
    assert "usage: vitrail COMMAND" in done.stdout


@pytest.mark.parametrize(("given", "found"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_threads_sleep_while_they_wait_unless_told_otherwise(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    given: str | None,
    found: str,
) -> None:
    monkeypatch.setenv("OMP_WAIT_POLICY", "")  # so that it is put back afterwards
    if given is None:
        monkeypatch.delenv("OMP_WAIT_POLICY")
    else:
        monkeypatch.setenv("OMP_WAIT_POLICY", given)
    run(capsys, "--version")
    assert os.environ["OMP_WAIT_POLICY"] == found


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--learning-rate", "1"], "unknown option --learning-rate; did you mean --lr?"),
        (["--weight_decay=1"], "unknown option --weight_decay; did you mean --optim.weight-decay?"),
        (["--batch-size", "8"], "unknown option --batch-size; did you mean --batch?"),
        (["--num-epochs", "8"], "unknown option --num-epochs; did you mean --epochs?"),
        (["--workers", "8"], "unknown option --workers; did you mean --loader.workers?"),
        (["--arch", "ViT-B/16"], "unknown option --arch; did you mean --model?"),
        (["--backbone=ViT-B/16"], "unknown option --backbone; did you mean --model?"),
        (["--freeze", "10"], "unknown option --freeze; did you mean --tune head (of finetune)?"),
        (["--max-grad-norm=1"], "unknown option --max-grad-norm; did you mean --optim.clip?"),
        (["--bf16"], "unknown option --bf16; did you mean --precision bfloat16?"),
        (["--momentum", "0.9"], "unknown option --momentum; did you mean --optim.momentum?"),
        (["--mixup", "0.2"], "unknown option --mixup; did you mean --augment.mixup?"),
        (["--rank=4"], "unknown option --rank; did you mean --tune.rank?"),
        (["--resume"], "unknown option --resume; run the same command again to resume"),
        (["--gradient_accumulation_steps", "4"], "did you mean --micro-batch?"),
        (["--num-classes", "4"], "the classes are those of the data"),
        (["--logging-steps", "4"], "unknown option --logging-steps; did you mean --log-every?"),
        (["--lora"], "unknown option --lora; did you mean --tune lora (of finetune)?"),
        (["-j", "4"], "vitrail: Unrecognized options: -j, 4 (see 'vitrail train --help')"),
        (["--lr", "1e"], "--lr: expected a number, got '1e'"),
        (["--steps", "a"], "--steps: expected a whole number, got 'a'"),
        (["--out", ""], "--out is empty; name a folder, or . for this one"),
        (["--out="], "--out is empty; name a folder, or . for this one"),
    ],
)
def test_flags_of_other_libraries_and_wrong_values_lead_to_ours(
    flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["train", "digits", "--out", "run", *flags])
    assert stop.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["evaluate", "m", "d", "--batch-size=3"], "option --batch-size; did you mean --batch?"),
        (["vtab", "m", "--data", "d", "--learning-rate", "1"], "did you mean --lr?"),
        (["evaluate", "m", "d", "--num-workers", "3"], "perhaps you meant --workers N"),
        (["evaluate", "m", "d", "--batch", "1e"], "--batch: expected a whole number, got '1e'"),
        (["export", "m", "o", "--to", "onnx", "--max-changed", "1e"], "a number, got '1e'"),
        (["fewshot", "m", "d", "--l2", "x", "y"], "--l2: expected numbers, got 'x', 'y' (see"),
        (["weights", "list", "--use", "it's"], "--use: expected one of classify, features, fine-"),
        (["weights", "list", "--use", "it's"], "fine-tune, zero-shot, got 'it's' (see"),
        (["describe", "ViT-B/16", "--batch"], "--batch: expected a value (see"),
    ],
)
def test_other_commands_lead_to_their_flags_too(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", ["train", "finetune", "evaluate"])
def test_torchrun_takes_no_flag_of_ours_for_its_own(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It refuses what may be short for several of its own, such as --log, among ours too."""
    from torch.distributed.run import parse_args

    _, out, _ = run(capsys, command, "--help")
    flags = [*re.findall(r"--[a-z][a-z0-9-]*", out), *TrainConfig.__dataclass_fields__]
    assert len(flags) > 30
    for flag in flags:
        given = f"--{flag.removeprefix('--').replace('_', '-')}"
        parsed = parse_args(["-m", "vitrail", command, given, "1"])
        assert parsed.training_script_args == [command, given, "1"]
    parsed = parse_args(["-m", "--", "vitrail", command, "--log", "1"])
    assert parsed.training_script_args == [command, "--log", "1"]


def test_an_error_of_the_system_gets_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(given: list[str]) -> None:
        raise OSError(24, "Too many open files", "a.jpg")

    monkeypatch.setattr(sys.modules["vitrail.cli.main"], "_run", fail)
    with pytest.raises(SystemExit) as stop:
        main([])
    assert stop.value.code == 1
    expected = "vitrail: a.jpg: Too many open files; raise the limit with ulimit -n\n"
    assert capsys.readouterr().err == expected


def test_libraries_keep_their_files_in_our_cache(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Unless the user has settings of their own: matplotlib's are in its folder."""
    names = ("MPLCONFIGDIR", "TORCHINDUCTOR_CACHE_DIR")
    for name in names:
        monkeypatch.setenv(name, "")  # restored in the end
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "cache"))
    run(capsys, "describe", "ViT-Ti/16")
    assert [os.environ.pop(name) for name in names] == [
        str(tmp_path / "cache" / "matplotlib"),
        str(tmp_path / "cache" / "torchinductor"),
    ]
    assert list(tmp_path.iterdir()) == []
    (tmp_path / ".config" / "matplotlib").mkdir(parents=True)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "own")
    run(capsys, "describe", "ViT-Ti/16")
    assert "MPLCONFIGDIR" not in os.environ
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "own"


def test_ctrl_c_while_commands_are_imported_gets_one_line() -> None:
    code = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # not so in the background
        "class Interrupting:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'vitrail.cli.options':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "from vitrail.__main__ import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "vitrail: interrupted\n")


@pytest.mark.parametrize("command", ["evaluate x digits", "inspect x", "train digits", "convert x"])
def test_a_name_that_is_too_long_is_the_users(
    command: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    model = vitrail.build("ViT/4@8,depth=1,width=16,heads=2,mlp=32", classes=10)
    vitrail.save(model, tmp_path / "x")
    words = [word if word != "x" else str(tmp_path / "x") for word in command.split()]
    out = str(tmp_path / ("n" * 256))
    more = {"train": ["--model", "ViT/4@8", "--steps", "1"], "convert": ["--to", "timm"]}
    words += [out] if words[0] == "convert" else ["--out", out]
    code, said, err = run(capsys, *words, *more.get(words[0], []))
    assert (code, said) == (2, "")
    assert err == f"vitrail: {out}: File name too long\n"


@pytest.mark.parametrize("error", [MemoryError("x"), RuntimeError("can't allocate memory\nframe")])
def test_too_little_memory_gets_one_line(
    error: Exception, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(given: list[str]) -> None:
        raise error

    monkeypatch.setattr(sys.modules["vitrail.cli.main"], "_run", fail)
    code, _, err = run(capsys)
    first = str(error).partition("\n")[0]
    said = f"vitrail: out of memory; a smaller --batch, --image or model needs less ({first})\n"
    assert (code, err) == (1, said)


def test_a_name_that_begins_with_a_dash_is_a_name_where_it_is_there(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for number in range(4):
        place = tmp_path / "-photos" / "ab"[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (40, 40, 3), np.uint8)
        Image.fromarray(pixels).save(place / f"{number}.png")
    code, out, _ = run(capsys, "data", "check", "-photos", "--workers", "1", "--json")
    assert (code, json.loads(out)["images"]) == (0, 4)
    with pytest.raises(SystemExit) as stop:  # nothing is called so
        main(["data", "check", "-fotos"])
    assert stop.value.code == 2


def test_a_glob_is_expanded_where_no_shell_did(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a Windows prompt; a name with brackets is itself where it is there."""
    monkeypatch.chdir(tmp_path)
    model = save_tiny(tmp_path / "model")
    for name in ("a/1.png", "a/2.png", "b/3.png", "b/x.jpg", "c[1].png", "c1.png"):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (9, 9)).save(path)

    def paths(glob: str) -> list[str]:
        code, out, _ = run(capsys, "predict", str(model), glob, "--json")
        assert code == 0
        return [Path(json.loads(line)["path"]).as_posix() for line in out.splitlines()]

    assert paths("in/*/*.png") == ["in/a/1.png", "in/a/2.png", "in/b/3.png"]
    assert paths("in/c[1].png") == ["in/c[1].png"]
    code, _, err = run(capsys, "predict", str(model), "in/*.gif", "--json")
    assert (code, "no file or folder in/*.gif" in err) == (2, True)
