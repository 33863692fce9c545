"""A run's test set: checked before training, and scored once, by the model that was kept."""

from __future__ import annotations

import logging
import os
from dataclasses import replace

from vitrail.config import InputError
from vitrail.data.dataset import ImageStream
from vitrail.data.datasets.open import open_data, open_dataset
from vitrail.data.split import NoSplitError
from vitrail.distributed import Processes, choose_device
from vitrail.evaluation.class_matching import match_classes
from vitrail.evaluation.evaluate import BATCH, map_thresholds, open_matched, predict_matched
from vitrail.evaluation.inputs import open_images, open_test_images, same_data
from vitrail.evaluation.scoring import score_predictions
from vitrail.training.checkpoints.run_folder import RESULT, read_result, write_result
from vitrail.training.parts import Parts
from vitrail.training.run_result import FinalScore, Run
from vitrail.training.train_config import TrainConfig
from vitrail.weights.load import as_loaded

log = logging.getLogger("vitrail")


def check_test(config: TrainConfig, parts: Parts, *, restart: bool = False) -> int:
    """Refuse a test set that a run's model could not be scored on; count its images."""
    if config.test_data is None or (not restart and _is_scored(config)):
        return 0
    if parts.task is not None or parts.model is not None:
        raise InputError(
            "--test can't score a task or a model with parts of your own; leave it out"
        )
    data = config.data if parts.data is None else parts.data
    split = _test_split(config.test_data)
    same = same_data(config.data, config.test_data)
    if same and split is None:
        raise InputError(
            f"--test {config.test_data} has what is trained on, and no test split: give other "
            "images, or leave it out, since validation already measures on what is held out"
        )
    chooses = config.keep == "best" or config.patience > 0
    if same and chooses and config.val_split == "test" and not (config.hold_out or config.val_data):
        raise InputError(
            f"--test {config.test_data}: its test split chooses the weights (--val-split test); "
            "give --hold-out 0.1 in its place"
        )
    train = open_data(data, split="train")
    test = open_images(config.test_data, split).dataset
    if test.regression != train.regression:
        one, other = ("numbers", "classes") if test.regression else ("classes", "numbers")
        raise InputError(f"--test: {test.name} has {one}, but {train.name} has {other} to learn")
    if not train.regression:
        try:
            match_classes(test, train.classes, len(train.classes))
        except InputError as error:
            said = str(error).partition("; map them")[0]
            raise InputError(f"--test: {said.replace('the model', train.name, 1)}") from None
    elif test.classes != train.classes:
        raise InputError(f"--test: {test.name} has other numbers to predict than {train.name}")
    return len(test)


def leave_test_score(run: Run, config: TrainConfig) -> Run:
    """Score a finished run's model on its test set, once; keep it in the result."""
    if config.test_data is None or run.ending == "paused" or _is_scored(config):
        return run
    try:
        score = _score(run, config, config.test_data)
    except (InputError, OSError) as error:  # the model is saved, and the run finished
        log.warning("not scored on --test %s: %s", config.test_data, error)
        return run
    run = replace(run, test=score)
    write_result(run.folder, {**read_result(run.folder / RESULT), "test": vars(score)})
    log.info("%s", score)
    return run


def _is_scored(config: TrainConfig) -> bool:
    """Tell whether a finished run has been scored on this test set."""
    path = config.out / RESULT
    test = read_result(path).get("test") if path.is_file() else None
    return test is not None and test["data"] == config.test_data


def _test_split(data: str) -> str | None:
    """Name the split of test data: its own `test`, or None for what the rule of docs/data.md is."""
    try:
        found = open_data(data, split="test")
    except NoSplitError:
        return None
    if isinstance(found, ImageStream):
        open_dataset(data, split="test")  # which refuses it
    return "test"


def _score(run: Run, config: TrainConfig, data: str) -> FinalScore:
    """Run the kept model over the test set, in this process alone."""
    model, alone = os.fspath(run.folder), Processes(0, 1, choose_device(config.device))
    loaded = as_loaded(run.folder)
    images = open_test_images(data, _test_split(data), model, held=run.chosen_on is None)
    opened, matching, notes = open_matched(loaded, data, opened=images)
    predictions = predict_matched(
        loaded, opened.dataset, matching, alone, BATCH, workers=config.loader.workers
    )
    thresholds = map_thresholds(loaded, matching, opened.dataset)
    result = score_predictions(predictions, opened.dataset, thresholds=thresholds)
    scores = result.scores()
    metric, best = next(iter(scores.items()))
    top1 = scores.get("top-1")
    return FinalScore(
        data=data,
        images=result.images,
        of=opened.selected.of,
        why=opened.selected.why,
        metric=metric,
        value=best.value,
        interval=(best.low, best.high),
        top1=None if top1 is None else top1.value,
        notes=notes,
    )
