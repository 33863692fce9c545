"""Parts of one's own in settings: import paths are found and noted, mistakes are one line."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.run import own_parts
from tests.shelf import refusal
from vitrail.config import import_callable, path_of, to_dict
from vitrail.training.callbacks import Callback
from vitrail.training.parts import gather_parts
from vitrail.training.train_config import TrainConfig

HERE = "tests.run.own_parts"


def config_of(**settings: Any) -> TrainConfig:
    return TrainConfig(data="digits", model="ViT-Ti/16", out=Path("out"), **settings)


@pytest.mark.parametrize(
    ("part", "path"),
    [
        (own_parts.half, f"{HERE}:half"),
        (own_parts.Contrastive, f"{HERE}:Contrastive"),
        (torch.optim.RMSprop, "torch.optim.rmsprop:RMSprop"),
        (lambda step, total: 1.0, "object:<lambda>"),
        (own_parts.Told(), "object:Told"),
    ],
)
def test_what_can_be_imported_has_a_path(part: Any, path: str) -> None:
    found = path_of(part)
    assert found == path
    if not path.startswith("object:"):
        assert import_callable(found, "part") is part


def test_a_class_of_a_script_has_no_path() -> None:
    script = type("Mine", (), {"__module__": "__main__"})
    assert path_of(script) == "object:Mine"


@pytest.mark.parametrize(
    ("path", "said"),
    [
        (f"{HERE}:nothing", f"cannot import '{HERE}:nothing'"),
        ("no.such.module:name", "cannot import 'no.such.module:name'"),
        ("alone", "cannot import 'alone'"),
        (".relative:name", "cannot import '.relative:name'"),
        (f"{HERE}:NUMBER", "schedule: expected a function or class, got int"),
        ("object:<lambda>", "schedule of your own, <lambda>, which has no import path; give it ag"),
    ],
)
def test_a_wrong_path_is_one_line(path: str, said: str) -> None:
    line = refusal(lambda: gather_parts(config_of(), schedule=path))
    assert said in line
    assert "\n" not in line


def test_parts_are_noted_and_found_again() -> None:
    given: dict[str, Any] = {
        "task": own_parts.Contrastive,
        "optimizer": "torch.optim.RMSprop",
        "schedule": own_parts.half,
        "transform": f"{HERE}.speckle",
        "model": own_parts.gate_first_block,
        "metrics": {"sum": own_parts.label_sum, "last_output": own_parts.last_output},
        "callbacks": [own_parts.Told],
        "loggers": ["tensorboard", own_parts.Lines],
    }
    config, parts = gather_parts(config_of(), **given)
    assert to_dict(config.parts) == {
        "task": f"{HERE}:Contrastive",
        "model": f"{HERE}:gate_first_block",
        "optimizer": "torch.optim.rmsprop:RMSprop",
        "schedule": f"{HERE}:half",
        "transform": f"{HERE}:speckle",
        "metrics": [f"sum={HERE}:label_sum", f"{HERE}:last_output"],
        "callbacks": [f"{HERE}:Told"],
    }
    assert config.loggers == ("tensorboard", f"{HERE}:Lines")
    again, found = gather_parts(config)
    assert again == config
    assert (found.task, found.optimizer) == (own_parts.Contrastive, torch.optim.RMSprop)
    assert found.metrics == {"sum": own_parts.label_sum, "last_output": own_parts.last_output}
    assert list(found.loggers) == ["tensorboard", f"{HERE}:Lines"]
    assert [type(each) for each in parts.callbacks] == [own_parts.Told]


def test_two_objects_of_one_name_are_two() -> None:
    config, parts = gather_parts(config_of(), callbacks=[own_parts.Told(), own_parts.Told()])
    assert config.parts.callbacks == ("object:Told", "object:Told")
    assert len(parts.callbacks) == 2
    same = "metrics: '<lambda>' is another metric's name"
    assert same in refusal(
        lambda: gather_parts(config_of(), metrics=[lambda x, y: 0.0, lambda x, y: 1.0])
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"metrics": {"top1": own_parts.label_sum}}, "'top1' is another metric's name"),
        ({"callbacks": [own_parts.NeedsAName]}, "missing 1 required positional argument"),
        ({"callbacks": [dict]}, "expected subclasses of vitrail.Callback, got dict"),
        ({"callbacks": [own_parts.half]}, "expected subclasses of vitrail.Callback, got function"),
        ({"optimizer": 3}, "optimizer: expected a function or class, got int"),
        ({"loggers": ["tensorbord"]}, "unknown logger 'tensorbord'; did you mean"),
        ({"loggers": [f"{HERE}:Nothing"]}, f"loggers: cannot import '{HERE}:Nothing'"),
    ],
)
def test_what_is_not_a_part_is_refused(given: dict[str, Any], said: str) -> None:
    line = refusal(lambda: gather_parts(config_of(), **given))
    assert said in line
    assert "\n" not in line


def test_modules_of_the_current_folder_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The console script, unlike python -m, does not look there."""
    (tmp_path / "my_own_schedule.py").write_text("def flat(step, total): return 1.0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [path for path in __import__("sys").path if path])
    _, parts = gather_parts(config_of(), schedule="my_own_schedule:flat")
    assert parts.schedule is not None
    assert parts.schedule(3, 4) == 1.0


def test_a_callback_does_nothing_by_itself() -> None:
    _, parts = gather_parts(config_of(), callbacks=[Callback])
    (callback,) = parts.callbacks
    assert callback.on_start(None, 0) is None
