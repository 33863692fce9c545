"""Folders of images as people have them: bad files are left out and counted, in every way."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.data.sets import encode, photo
from tests.faults.toy import MODEL, fail_at, print_of, steps, toy
from tests.runs import train
from vitrail.config import InputError
from vitrail.data.cache import CacheConfig
from vitrail.data.checks.quick_check import QuickCheck
from vitrail.data.datasets.open import open_dataset
from vitrail.data.decoding.decode import ImageError, decode
from vitrail.data.transforms.augment import Augment
from vitrail.run import TrainConfig
from vitrail.training.checkpoints.checkpoint_files import latest_checkpoint
from vitrail.training.loop import Trainer
from vitrail.training.optimization.schedule import ScheduleConfig

BAD = [
    (b"", "0.jpg"),
    (b"<html>not found</html>", "page.jpg"),
    (encode(photo(1), "JPEG")[:300], "half.jpg"),
    (b"\x89PNG\r\n\x1a\n" + bytes(40), "head.png"),
    (bytes(range(256)), "noise.png"),
]


def make_folder(root: Path, train_bad: int = 5, val_bad: int = 2) -> Path:
    """Write 60 images to train on and 20 to evaluate on, some of them bad, of three classes."""
    for split, count, bad in (("train", 60, train_bad), ("val", 20, val_bad)):
        for number in range(count):
            folder = root / split / "abc"[number % 3]
            folder.mkdir(parents=True, exist_ok=True)
            if number < bad:
                content, name = BAD[number % len(BAD)]
                (folder / f"bad{number}-{name}").write_bytes(content)
            else:
                (folder / f"{number}.png").write_bytes(encode(photo(number)))
    return root


def config_of(data: Path, out: Path, **changes: Any) -> TrainConfig:
    """Train two epochs, so that each image is met twice."""
    model = MODEL.replace("channels=1", "channels=3")
    settings = {"data": str(data), "model": model, "length": steps(8), "batch": 15}
    return toy(out, **{**settings, "augment": Augment(mixup=0.2), **changes})


def summaries(out: Path) -> list[str]:
    """Give what a run said of images that could not be used, without its times."""
    lines = (out / "log.txt").read_text().splitlines()
    return [line.split("WARNING ")[1] for line in lines if "could not be used" in line]


def test_bad_images_are_left_out_and_counted(tmp_path: Path) -> None:
    config = config_of(make_folder(tmp_path / "photos"), tmp_path / "run")
    result = train(config)
    assert (result.images, result.skipped) == (18, 2)
    assert str(result).endswith("on 18 of 20 images")
    total, val = summaries(config.out)
    assert total.startswith(f"{tmp_path}/photos/train: 5 of 60 images could not be used (")
    assert sum(map(int, re.findall(r"(\d+) [a-z]", total.partition("(")[2]))) == 5
    assert val.startswith(f"{tmp_path}/photos/val: 2 of 20 images could not be used (")


def test_the_result_does_not_depend_on_what_bad_images_hold(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "photos")
    train(config_of(folder, tmp_path / "one"))
    for path in folder.rglob("bad*"):
        path.write_bytes(b"otherwise bad")
    train(config_of(folder, tmp_path / "two"))
    assert print_of(tmp_path / "one") == print_of(tmp_path / "two")


def test_accuracy_is_of_the_readable_images_only(tmp_path: Path) -> None:
    """A bad image counts neither as wrong nor as another one twice."""
    folder = make_folder(tmp_path / "photos")
    with_bad = train(config_of(folder, tmp_path / "one"))
    for path in (folder / "val").rglob("bad*"):
        path.unlink()
    without = train(config_of(folder, tmp_path / "two"))
    assert (without.top1, without.top5, without.images) == (
        with_bad.top1,
        with_bad.top5,
        with_bad.images,
    )
    assert without.loss == pytest.approx(with_bad.loss, abs=1e-6)
    assert without.skipped == 0


@pytest.fixture
def unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the look before the first step find nothing, as it does in many images or a stream."""
    monkeypatch.setattr(QuickCheck, "refuse", lambda self, allowed: None)


@pytest.mark.usefixtures("unseen")
def test_too_many_bad_images_end_the_run_in_one_line(tmp_path: Path) -> None:
    config = config_of(make_folder(tmp_path / "photos", train_bad=7), tmp_path / "run")
    said = r"photos/train: 7 of 60 images could not be used .*, more than the 10% that are allowed"
    with pytest.raises(InputError, match=said) as caught:
        train(config)
    assert len(str(caught.value).splitlines()) == 1
    with pytest.raises(InputError, match=said):  # and again: those met before are not forgotten
        train(config)
    assert train(config_of(Path(config.data), config.out, max_unreadable=0.2)).steps == 8


@pytest.mark.parametrize(
    "changes",
    [
        {"data": "nowhere"},
        {"weights": "none.npz"},
        {"schedule": ScheduleConfig(warmup=steps(99))},
    ],
)
def test_a_refused_run_leaves_nothing_and_takes_nothing(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    good = config_of(make_folder(tmp_path / "photos"), tmp_path / "run")
    bad = replace(good, **changes)
    with pytest.raises(InputError):
        train(bad)
    assert not bad.out.exists()
    train(good)
    before = print_of(good.out)
    with pytest.raises(InputError):
        train(bad, restart=True)
    assert print_of(good.out) == before
    assert (good.out / "result.json").exists()


@pytest.mark.usefixtures("unseen")
def test_no_readable_image_to_evaluate_on_is_an_error(tmp_path: Path) -> None:
    config = config_of(make_folder(tmp_path / "photos", val_bad=20), tmp_path / "run")
    with pytest.raises(InputError, match=r"20 of 20 images could not be used .* more than"):
        train(config)


@pytest.mark.usefixtures("unseen")
def test_too_many_bad_validation_images_end_a_run_and_lose_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos = make_folder(tmp_path / "photos", val_bad=5)
    config = config_of(photos, tmp_path / "run", eval_every=steps(8), save_every=None)
    with pytest.raises(InputError, match=r"photos/val: 5 of 20 images could not be used .* 10%"):
        train(config)
    saved = latest_checkpoint(config.out / "checkpoints")
    assert saved is not None
    assert saved.step == 8
    fail_at(monkeypatch, 7)  # so that no step can be taken twice
    run = train(replace(config, max_unreadable=0.5))
    assert (run.steps, run.images, run.skipped) == (8, 15, 5)


@pytest.mark.parametrize("cache", [CacheConfig(), CacheConfig(limit=1.0)])
def test_a_resumed_run_remembers_the_bad_images(tmp_path: Path, cache: CacheConfig) -> None:
    data = make_folder(tmp_path / "photos")
    whole, config = (config_of(data, tmp_path / name, cache=cache) for name in ("whole", "run"))
    train(whole)
    with pytest.MonkeyPatch.context() as patch:
        fail_at(patch, 7)
        with pytest.raises(ZeroDivisionError):
            train(config)
    train(config)  # of which the last two steps do not meet them all
    assert summaries(config.out) == summaries(whole.out)
    assert print_of(config.out) == print_of(whole.out)


def test_images_that_vanish_are_counted_and_stop_no_run(tmp_path: Path) -> None:
    data = make_folder(tmp_path / "photos", train_bad=0, val_bad=0)
    config = config_of(data, tmp_path / "run")
    real = Trainer.launch

    def step(self: Trainer, number: int, *args: Any) -> Any:
        if number == 0:
            for path in (
                *sorted((data / "train").rglob("*.png"))[:3],
                data / "val" / "b" / "1.png",
            ):
                path.unlink()
        return real(self, number, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "launch", step)
        result = train(config)
    assert (result.images, result.skipped) == (19, 1)
    assert summaries(config.out) == [
        f"{data}/train: 3 of 60 images could not be used (3 unreadable)",
        f"{data}/val: 1 of 20 images could not be used (1 unreadable)",
    ]


def test_a_changed_set_is_refused_with_the_numbers(tmp_path: Path) -> None:
    data = make_folder(tmp_path / "photos", train_bad=0, val_bad=0)
    config = config_of(data, tmp_path / "run")
    with pytest.MonkeyPatch.context() as patch:
        fail_at(patch, 4)
        with pytest.raises(ZeroDivisionError):
            train(config)
    before = {path: path.read_bytes() for path in config.out.rglob("*") if path.is_file()}
    moved = sorted((data / "train").rglob("*.png"))[:3]
    contents = [path.read_bytes() for path in moved]
    for path in moved:
        path.unlink()
    refused = r"photos/train had 60 images when the run began and has {} now \({}\); put back"
    with pytest.raises(InputError, match=refused.format(57, "3 are gone")):
        train(config)
    for path, content in zip(moved, contents, strict=True):
        path.with_name(f"new-{path.name}").write_bytes(content)
    with pytest.raises(InputError, match=refused.format(60, "others")):
        train(config)
    for path, content in zip(moved, contents, strict=True):
        path.write_bytes(content)
    with pytest.raises(InputError, match=refused.format(63, "3 are new")):
        train(config)
    for path in moved:
        path.with_name(f"new-{path.name}").unlink()
    extra = data / "val" / "a" / "x.png"
    extra.write_bytes(contents[0])
    with pytest.raises(InputError, match=r"photos/val had 20 images .* 21 now \(1 are new\)"):
        train(config)
    extra.unlink()
    kept = {path: content for path, content in before.items() if path.name != "run.lock"}
    assert {path: path.read_bytes() for path in kept} == kept  # a refusal changes nothing
    assert train(config).steps == 8


def test_odd_images_mixed_into_a_set_are_used_or_counted(tmp_path: Path, odd_images: Path) -> None:
    data = make_folder(tmp_path / "photos", train_bad=0, val_bad=0)
    odd = sorted(path for path in odd_images.rglob("*") if path.is_file() and path.suffix != ".tsv")
    for number, path in enumerate(odd):
        (data / "train" / "abc"[number % 3] / f"odd{number}{path.suffix}").symlink_to(path)
    train_set = open_dataset(data, split="train")  # without what is no image by its ending
    files = [data / train_set.where(number) for number in range(len(train_set))]
    bad = sum(not is_readable(path) for path in files)
    assert bad > 100
    epoch = steps(-(-len(files) // 15))
    config = config_of(data, tmp_path / "run", length=epoch, max_unreadable=1.0)
    train(config)
    (said,) = summaries(config.out)
    assert f"{bad:,} of {len(files):,} images could not be used" in said


def is_readable(path: Path) -> bool:
    try:
        decode(path.read_bytes(), channels=3)
    except ImageError:
        return False
    return True
