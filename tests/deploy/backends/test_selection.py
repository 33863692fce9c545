"""Backends: the same predictions by all, cached files, and a choice measured once."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.data.decoding.images import encode, photo
from tests.deploy.serving import image, save_model
from tests.predictors import PREPROCESS, make
from tests.shelf import refusal
from vitrail.cli import main
from vitrail.data.decoding.decode import Limits
from vitrail.deploy.backends import selection
from vitrail.deploy.backends.backends import BACKENDS, Backend, BackendContext
from vitrail.deploy.backends.selection import backend_choices, select_backend
from vitrail.deploy.serving.worker import load_model, run_batch
from vitrail.files import lock_folder
from vitrail.predictor import BatchingConfig, Predictor
from vitrail.predictor.predictor import Engine

pytestmark = pytest.mark.usefixtures("onnx_once")


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    torch.manual_seed(0)
    return Predictor(
        make(), name="tiny", batching=BatchingConfig(batch_size=3, workers=2, threads=1)
    )


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def own_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITRAIL_CACHE", str(cache))


def only(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(f"backends/*/{pattern}")
    return found


@pytest.mark.parametrize("backend", ["pytorch", "onnxruntime", "openvino"])
def test_every_backend_gives_the_same_alone_and_in_batches_of_two_sizes(
    predictor: Predictor, backend: str
) -> None:
    pytest.importorskip(backend.replace("pytorch", "torch"))
    images = [photo(20 + n, 40) for n in range(8)]  # batches of 3, 3 and 2, side by side
    other = select_backend(predictor, backend)
    found = other.logits(images)
    assert torch.allclose(found, predictor.logits(images), atol=1e-5)
    assert torch.allclose(other.logits(images[0]), found[0], atol=1e-5)
    assert torch.allclose(other.embed(images[0]), predictor.embed(images[0]), atol=1e-5)


def test_the_graph_is_kept_and_a_damaged_one_made_again(predictor: Predictor, cache: Path) -> None:
    pytest.importorskip("onnxruntime")
    select_backend(predictor, "onnxruntime")
    graph = only(cache, "model.onnx")
    content = graph.read_bytes()
    graph.write_bytes(content[:1000])
    assert torch.allclose(
        select_backend(predictor, "onnxruntime").logits(photo(9, 9)), predictor.logits(photo(9, 9)),
        atol=1e-5,
    )  # fmt: skip
    assert len(graph.read_bytes()) == len(content)
    before = graph.stat().st_mtime_ns
    select_backend(predictor, "onnxruntime")
    assert graph.stat().st_mtime_ns == before


def counting(predictor: Predictor, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let one fast way be there beside PyTorch, and list how often it is made."""
    made: list[str] = []

    def build(context: object, batching: BatchingConfig) -> Engine:
        made.append(str(batching))
        return predictor.model

    monkeypatch.setitem(BACKENDS, "onnxruntime", Backend(build, exact=True, quick=True))
    monkeypatch.delitem(BACKENDS, "openvino")
    monkeypatch.setattr("vitrail.deploy.backends.bench.batching_candidates", lambda default: [])
    monkeypatch.setattr("vitrail.deploy.backends.bench._GAIN", 0.0)  # whatever the machine does
    return made


def test_other_weights_have_another_graph(
    predictor: Predictor, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has a folder of its own in the cache."""
    counting(predictor, monkeypatch)
    torch.manual_seed(1)
    other = make()
    smaller = replace(other, preprocess=replace(PREPROCESS, size=(24, 24)))
    cases = [predictor, Predictor(other), Predictor(other), Predictor(smaller)]
    folders = []
    for each in cases:
        select_backend(each, "onnxruntime")
        folders.append(len(list((cache / "backends").iterdir())))
    assert folders == [1, 2, 2, 3]
    with torch.no_grad():
        next(other.model.parameters())[0] += 1e-3
    select_backend(Predictor(other), "onnxruntime")
    assert len(list((cache / "backends").iterdir())) == 4


def test_auto_measures_once(
    predictor: Predictor, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, said = counting(predictor, monkeypatch), list[str]()
    select_backend(predictor, "auto", log=said.append)
    assert len(said) == 2
    assert "measuring" in said[0]
    kept = only(cache, "*.json")
    assert json.loads(kept.read_text())["backend"] in ("pytorch", "onnxruntime")
    kept.write_text(json.dumps({"backend": "onnxruntime", "batch_size": 5, "gain": 0.1}))
    made.clear()
    found = select_backend(
        predictor,
        "auto",
        batching=BatchingConfig(batch_size=1, workers=1, threads=1),
        log=said.append,
    )
    assert len(said) == 2
    assert made == ["5 x 1 x 1"]
    assert found.batching == BatchingConfig(batch_size=5, workers=1, threads=1)


def test_auto_changes_only_what_the_images_pay_for(
    predictor: Predictor, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(cache / "backends", ignore_errors=True)
    made, said = counting(predictor, monkeypatch), list[str]()
    # Too few to be worth measuring: the default, after no work at all.
    assert select_backend(predictor, "auto", images=4400, log=said.append) is predictor
    assert (made, len(said)) == ([], 1)
    assert "pytorch; another would not pay for 4,400 images" in said[0]
    # By time: 100,000 images of this tiny model take PyTorch less than a backend's start.
    monkeypatch.setattr(selection, "_EXPORT_SECONDS", 1e9)
    assert select_backend(predictor, "auto", images=100_000) is predictor
    assert made == []
    monkeypatch.setattr(selection, "_EXPORT_SECONDS", 0)
    select_backend(predictor, "auto", images=100_000)
    assert made
    kept = only(cache, "*.json")
    assert set(json.loads(kept.read_text())) == {"backend", "batch_size", "gain", "start"}
    # What is known costs its start only.
    known = {"backend": "onnxruntime", "batch_size": 5, "gain": 0.01, "start": 2.0}
    kept.write_text(json.dumps(known))
    made.clear()
    assert select_backend(predictor, "auto", images=200) is predictor
    assert made == []
    assert select_backend(predictor, "auto", images=201).batching.batch_size == 5
    assert select_backend(predictor, "auto").batching.batch_size == 5
    assert len(made) == 2


@pytest.mark.parametrize(
    "damage",
    [
        "",
        "{",
        "[]",
        '{"backend": "int8", "batch_size": 8, "gain": 0}',
        '{"backend": "pytorch", "batch_size": 0, "gain": 0}',
        '{"backend": "onnxruntime", "batch_size": 8}',
    ],
)
def test_a_damaged_choice_is_measured_again(
    predictor: Predictor, cache: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    counting(predictor, monkeypatch)
    select_backend(predictor, "auto")
    kept, said = only(cache, "*.json"), list[str]()
    kept.write_text(damage)
    select_backend(predictor, "auto", log=said.append)
    assert "measuring" in said[0]
    assert json.loads(kept.read_text())["batch_size"] > 0


def test_only_exact_backends_are_chosen_from() -> None:
    assert backend_choices() == ("pytorch", "onnxruntime", "openvino", "auto")
    assert all(BACKENDS[name].exact for name in backend_choices() if name != "auto")


def test_a_second_process_waits(
    predictor: Predictor, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a backend's files are written, nobody else gets the folder's lock."""

    def make(context: BackendContext, batching: BatchingConfig) -> Engine:
        with pytest.raises(BlockingIOError), lock_folder(context.folder, wait=False):
            pass
        folders.append(context.folder)
        return predictor.model

    folders: list[Path] = []
    monkeypatch.setitem(BACKENDS, "openvino", Backend(make, exact=True, quick=True))
    select_backend(predictor, "openvino")
    with lock_folder(folders[0], wait=False) as locked:
        assert locked


def test_what_cannot_be_is_refused(predictor: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    assert refusal(select_backend, predictor, "openvin") == (
        "--backend openvin: expected one of pytorch, onnxruntime, openvino, auto; "
        "did you mean 'openvino'?"
    )
    assert refusal(select_backend, predictor, "int8").endswith("auto; only vitrail bench runs it")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert refusal(select_backend, predictor, "openvino") == (
        "this needs openvino, onnx, onnxscript: pip install 'vitrail[onnx,openvino]'"
    )


def test_a_cache_that_cannot_be_is_named(
    predictor: Predictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "file"))
    assert refusal(select_backend, predictor, "onnxruntime").endswith(
        "set VITRAIL_CACHE to another folder"
    )


def test_the_command_predicts_the_same_by_another_backend(
    predictor: Predictor,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("onnxruntime")
    load: Callable[..., Predictor] = lambda source, **options: predictor  # noqa: E731
    monkeypatch.setattr(Predictor, "load", load)
    for number in range(4):
        (tmp_path / f"{number}.png").write_bytes(encode(photo(30, 30 + number), "PNG"))
    tops = []
    for backend in ("pytorch", "onnxruntime"):
        main(["predict", "any", str(tmp_path), "--backend", backend, "--json"])
        lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        tops.append([[score["index"] for score in line["top"]] for line in lines])
    assert tops[0] == tops[1]
    with pytest.raises(SystemExit) as ended:
        main(["predict", "any", str(tmp_path), "--backend", "tflite"])
    error = capsys.readouterr().err
    assert ended.value.code == 2
    assert error.count("\n") == 1
    assert "--backend tflite: expected one of pytorch" in error


def test_served_images_get_the_same_by_another_backend(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    folder, before = save_model(tmp_path / "model"), torch.get_num_threads()
    head = {"operation": "predict", "options": [{"top": 7}] * 3}
    answers = []
    for backend in ("pytorch", "onnxruntime"):
        served = load_model(str(folder), "named", None, "cpu", backend)
        assert served.predictor.name == "named"
        assert torch.get_num_threads() == before
        found = run_batch(served, head, [image(seed) for seed in range(3)], Limits())
        answers.append([[score["index"] for score in data["top"]] for _, data in found])
        assert all(good for good, _ in found)
    assert answers[0] == answers[1]


def test_serving_refuses_an_unknown_backend_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = save_model(tmp_path / "model")
    with pytest.raises(SystemExit) as ended:
        main(["serve", str(folder), "--port", "0", "--workers", "1", "--backend", "tflite"])
    error = capsys.readouterr().err
    assert ended.value.code == 2
    assert error.count("\n") == 1
    assert "--backend tflite: expected one of pytorch" in error
