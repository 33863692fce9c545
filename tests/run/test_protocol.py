"""The fine-tune protocol: what it holds out, whom it cuts, what it picks, and that kills don't."""

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vitrail.recipes.protocol_run
from tests.cases import slow_but
from tests.faults.toy import in_child, steps, toy
from tests.forks import Ended
from tests.runs import read_repeatable, train
from vitrail import recipes
from vitrail.config import InputError, read_file
from vitrail.data.dataset import ImageDataset
from vitrail.data.datasets.open import open_data
from vitrail.data.loader import LoaderConfig
from vitrail.data.split import split_dataset
from vitrail.data.transforms.augment import Augment
from vitrail.recipes.protocol import Protocol, ProtocolResult
from vitrail.recipes.protocol_run import SUMMARY, find_hopeless, run_protocol
from vitrail.run import TrainConfig, train_among
from vitrail.training import run_data
from vitrail.training.loop import DivergedError, Trainer
from vitrail.training.optimization.optim import OptimConfig
from vitrail.training.run_data import open_datasets

RATES = (5e-3, 1e-300, 8e-3, 2e-300)  # of which two are 0 in float32
LEARNS: dict[str, Any] = {
    "length": steps(16),
    "batch": 64,
    "augment": Augment(crop="whole", flip=0.0),
    "optim": OptimConfig(lr=1.0),
    "eval_every": steps(16),
    "ema": 0.0,
    "loader": LoaderConfig(workers=0),
}


def make(out: Path, **changes: Any) -> Protocol:
    settings: dict[str, Any] = {"rates": RATES, "held_out": 0.1, "seeds": 2, **changes}
    return Protocol(config=toy(out, **LEARNS), **settings)


def follow(protocol: Protocol, *, restart: bool = False) -> ProtocolResult:
    return run_protocol(protocol, train_among, restart=restart)


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> ProtocolResult:
    """Follow a protocol in which two rates are far too small."""
    return follow(make(tmp_path_factory.mktemp("protocol") / "run"))


@pytest.mark.parametrize(
    ("accuracies", "images", "hopeless"),
    [
        ([0.9, 0.5, 0.88, 0.2], 100, {1, 3}),  # 3 errors: 0.175 and 0.150
        ([0.9, 0.5, 0.88, 0.2], 3, set()),  # 3 errors: more than 1
        ([0.9, 0.1, 0.2, 0.3], 100, {1, 2}),  # the better half stays, however far behind
        ([0.5, 0.5, 0.5, 0.5], 10_000, set()),
        ([0.8, 0.1], 100, {1}),
        ([0.8, 0.1, 0.1], 100, {2}),  # the larger half
        ([0.3], 100, set()),
        ([1.0, 0.49], 9, {1}),  # behind by 0.51; 3 errors: 0.49990
        ([1.0, 0.51], 9, set()),  # behind by 0.49
        ([1.0, 0.0], 1, {1}),
    ],
)
def test_hopeless_is_in_the_worse_half_and_three_errors_behind(
    accuracies: list[float], images: int, hopeless: set[int]
) -> None:
    assert find_hopeless(accuracies, images) == hopeless


def test_the_hopeless_are_cut_and_the_best_is_trained_on_all(followed: ProtocolResult) -> None:
    endings = {trial.lr: (trial.ending, len(trial.seen)) for trial in followed.trials}
    assert endings == {
        5e-3: ("finished", 3),
        8e-3: ("finished", 3),
        1e-300: ("cut", 1),
        2e-300: ("cut", 1),
    }
    assert [[seen.step for seen in trial.seen] for trial in followed.trials][:2] == [
        [4, 8, 16],
        [4],
    ]
    assert all(seen.images == 145 for trial in followed.trials for seen in trial.seen)
    finished = [trial for trial in followed.trials if trial.ending == "finished"]
    assert followed.lr == max(finished, key=lambda trial: trial.top1).lr
    reached = [run.top1 for run in followed.runs]
    assert followed.top1 == pytest.approx(np.mean(reached))  # pyright: ignore
    assert followed.std == pytest.approx(np.std(reached, ddof=1))  # pyright: ignore
    assert [run.images for run in followed.runs] == [355, 355]


def test_each_run_is_an_ordinary_one(followed: ProtocolResult, tmp_path: Path) -> None:
    again = replace(make(followed.folder).final(followed.lr, seed=6), out=tmp_path / "again")
    assert train(again).top1 == followed.runs[1].top1
    assert [run.folder.name for run in followed.runs] == ["seed-5", "seed-6"]
    said = read_file(followed.folder / "grid" / "lr-0.005" / "config.yaml")
    assert (said["hold_out"], said["optim"]["lr"], said["seed"]) == (0.1, 5e-3, 5)
    assert read_file(followed.folder / "seed-6" / "config.yaml")["hold_out"] == 0
    metrics = (followed.folder / "grid" / "lr-1e-300" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(metrics[-1])["step"] == 4  # of 16


def test_the_summary_says_all(followed: ProtocolResult) -> None:
    summary = read_file(followed.folder / SUMMARY)
    assert (summary["lr"], summary["top1"]) == (followed.lr, followed.top1)
    assert summary["std"] == followed.std
    assert [run["folder"] for run in summary["runs"]] == ["seed-5", "seed-6"]
    assert [trial["ending"] for trial in summary["trials"]] == [
        "finished",
        "cut",
        "finished",
        "cut",
    ]
    assert summary["settings"]["rates"] == list(RATES)


def test_a_finished_protocol_only_says_what_it_reached(
    followed: ProtocolResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (followed.folder / SUMMARY).read_bytes()
    monkeypatch.setattr(Trainer, "launch", None)
    assert follow(make(followed.folder)) == followed
    assert (followed.folder / SUMMARY).read_bytes() == before
    with pytest.raises(InputError, match=r"cannot resume: seeds 2 → 3; use --restart"):
        follow(make(followed.folder, seeds=3))


MOMENTS: dict[str, tuple[object, str, int]] = {
    "before a trial is noted": (vitrail.recipes.protocol_run, "write_whole", 2),
    "before a cut is noted": (vitrail.recipes.protocol_run, "write_whole", 5),
    "amid the second rung": (Trainer, "launch", 22),
    "in a run on all": (Trainer, "launch", 60),
}
"""What is called, and for the how-manieth time."""


@pytest.mark.parametrize("moment", slow_but(["amid the second rung"], MOMENTS))
def test_a_kill_changes_no_byte(followed: ProtocolResult, tmp_path: Path, moment: str) -> None:
    owner, name, nth = MOMENTS[moment]
    real, calls, out = getattr(owner, name), 0, tmp_path / "run"

    def called(*args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == nth:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **options)

    def work() -> None:
        setattr(owner, name, called)  # of the child only
        follow(make(out))

    assert in_child(work).code == -signal.SIGKILL
    assert in_child(lambda: follow(make(out))) == Ended(0)
    for path in followed.folder.rglob("*"):
        if path.name in (SUMMARY, "metrics.jsonl", "model.safetensors", "result.json"):
            again = out / path.relative_to(followed.folder)
            assert read_repeatable(again) == read_repeatable(path)


def test_a_rate_that_diverges_is_left_out(tmp_path: Path) -> None:
    sgd = OptimConfig(kind="sgd", clip=None)
    protocol = make(tmp_path / "run", rates=(1e30, 0.1), seeds=1)
    protocol = replace(protocol, config=replace(protocol.config, optim=sgd, length=steps(4)))
    found = follow(protocol)
    assert [trial.ending for trial in found.trials] == ["diverged", "finished"]
    assert (found.lr, found.std, len(found.runs)) == (0.1, None, 1)
    assert follow(protocol) == found
    with pytest.raises(DivergedError, match=r"every run of the grid diverged \(1e\+30, 1e\+31\)"):
        follow(replace(protocol, rates=(1e30, 1e31)), restart=True)
    assert not (tmp_path / "run" / "seed-5").exists()


def test_one_rate_needs_no_grid(tmp_path: Path) -> None:
    protocol = make(tmp_path / "run", rates=(0.01,), seeds=1)
    found = follow(replace(protocol, config=replace(protocol.config, length=steps(2))))
    assert (found.trials, found.lr) == ((), 0.01)
    assert not (tmp_path / "run" / "grid").exists()


def test_what_is_held_out_is_of_each_class_alike_and_no_test_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def note(text: str, *, split: str, labels: bool = True) -> Any:
        opened.append(split)
        return open_data(text, split=split)

    monkeypatch.setattr(run_data, "open_data", note)
    whole = open_data("digits", split="train")
    assert isinstance(whole, ImageDataset)
    names = {whole.where(index) for index in range(len(whole))}
    for seed in (0, 1):  # which changes nothing
        rest, held_out = open_datasets(toy(tmp_path, hold_out=0.1, seed=seed))
        assert isinstance(rest, ImageDataset)
        assert held_out is not None
        theirs = {held_out.where(index) for index in range(len(held_out))}
        assert {rest.where(index) for index in range(len(rest))} == names - theirs
        counts = np.bincount(whole.labels)
        assert np.bincount(held_out.labels).tolist() == np.floor(counts / 10 + 0.5).tolist()
        assert [*map(held_out.where, range(9))] != [*map(whole.where, range(9))]
    assert opened == ["train", "train"]


@pytest.mark.parametrize(
    ("data", "counts", "expected"),
    [
        ("pets", [100] * 36 + [93], 36 * 10 + 9),  # 3,693 here, about 10 %
        ("cifar10", [5000] * 10, 1000),
        ("cifar100", [500] * 100, 1000),
        ("flowers", [10] * 102, 102),
    ],
)
def test_slices_have_the_papers_sizes(data: str, counts: list[int], expected: int) -> None:
    labels = np.repeat(np.arange(len(counts)), counts)

    class Named(ImageDataset):
        def read(self, index: int) -> bytes:
            raise NotImplementedError

        def where(self, index: int) -> str:
            return str(index)

    source = Named(data, [str(c) for c in range(len(counts))], labels)
    rest, held_out = split_dataset(source, recipes.TRANSFERS[data].held_out, 0)
    assert (len(held_out), len(rest)) == (expected, len(labels) - expected)


def test_the_papers_protocol_by_data_set(tmp_path: Path) -> None:
    config = TrainConfig(data="digits", model="ViT-L/16", out=tmp_path)
    plain = recipes.paper_protocol(config)
    assert (plain.rates, plain.held_out, plain.seeds) == ((0.001, 0.003, 0.01, 0.03), 0.1, 3)
    assert plain.config.val_split == "test"  # digits have one
    imagenet = recipes.paper_protocol(recipes.paper_finetune(config, "imagenet"), "imagenet")
    assert (imagenet.rates, imagenet.held_out) == ((0.003, 0.01, 0.03, 0.06), 0.01)
    assert (imagenet.config.ema, imagenet.config.model) == (0.9999, "ViT-L/16@512")
    assert recipes.paper_finetune(config, "pets").ema == 0
    base = replace(config, model="ViT-B/16")
    assert recipes.paper_finetune(base, "imagenet").ema == 0
    huge = recipes.paper_finetune(replace(config, model="ViT-H/14"), "imagenet")
    assert (huge.ema, huge.model) == (0.9999, "ViT-H/14@518")
    found = {
        text: recipes.transfer_of(text) for text in ("flowers102:x", "cifar10", "pets/", "a:b")
    }
    assert found == {"flowers102:x": "flowers", "cifar10": "cifar10", "pets/": None, "a:b": None}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rates": (0.1, 0.1)}, "each once, got 0.1, 0.1"),
        ({"rates": ()}, "got none"),
        ({"held_out": 1.0}, r"held-out fraction must be in \(0, 1\), got 1.0"),
        ({"seeds": 0}, "at least one seed, got 0"),
    ],
)
def test_what_is_no_protocol_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        make(Path("run"), **changes)


def test_a_protocol_needs_accuracies() -> None:
    config = replace(toy(Path("run"), **LEARNS), augment=Augment(), task="mae")
    with pytest.raises(InputError, match="mae has none"):
        Protocol(config=config, rates=RATES, held_out=0.1)


def test_several_labels_have_no_top1_to_go_by(tmp_path: Path) -> None:
    pixels = np.zeros((8, 8), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    Image.fromarray(pixels + 9).save(tmp_path / "b.png")
    (tmp_path / "list.csv").write_text("path,label\na.png,cat|dog\nb.png,dog\n")
    protocol = make(tmp_path / "run")
    protocol = replace(protocol, config=replace(protocol.config, data=f"csv:{tmp_path}/list.csv"))
    with pytest.raises(InputError, match="has several labels per image"):
        follow(protocol)
    assert not (tmp_path / "run").exists()


def test_other_validation_data_is_for_the_final_runs(tmp_path: Path) -> None:
    protocol = make(tmp_path / "run")
    protocol = replace(protocol, config=replace(protocol.config, val_data="digits"))
    trial, final = protocol.trial(0.1), protocol.final(0.1, 5)
    assert (trial.hold_out, trial.val_data) == (protocol.held_out, None)
    assert (final.hold_out, final.val_data) == (0.0, "digits")
