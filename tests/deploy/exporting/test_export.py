"""Exported models: run by the programs they are for, and compared with PyTorch's values."""

import io
import json
import os
import resource
import shlex
import signal
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.cases import slow_but
from tests.data.decoding.images import photo
from tests.predictors import NAMES, PREPROCESS, make
from tests.shelf import refusal
from vitrail.cli import main
from vitrail.data.decoding.arrays import to_bytes
from vitrail.data.decoding.reading import Reading
from vitrail.data.transforms.apply import normalize
from vitrail.deploy.backends.engines import open_onnx, open_openvino
from vitrail.deploy.exporting import export as export_room
from vitrail.deploy.exporting import writers as writers_room
from vitrail.deploy.exporting.export import ExportResult, export
from vitrail.deploy.exporting.graph import ExportModule, trace
from vitrail.deploy.exporting.samples import take_samples
from vitrail.deploy.exporting.usage import use_command
from vitrail.predictor import Predictor

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")


pytestmark = pytest.mark.usefixtures("onnx_once")


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    torch.manual_seed(0)
    return Predictor(make())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("exported")


@pytest.fixture(scope="module")
def plain(predictor: Predictor, folder: Path) -> ExportResult:
    """Export once for all tests, as tracing takes seconds."""
    return export(predictor, folder / "any.onnx", to="onnx", any_size=True)


def inputs(count: int, height: int = 32, width: int = 32) -> torch.Tensor:
    return torch.randn(count, 3, height, width)


def session(path: Path) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize(
    ("count", "height", "width"), [(1, 32, 32), (5, 32, 32), (2, 64, 40), (3, 16, 24)]
)
def test_onnx_runs_at_any_size(
    predictor: Predictor, plain: ExportResult, count: int, height: int, width: int
) -> None:
    x = inputs(count, height, width)
    with torch.no_grad():
        expected = predictor.model(x).numpy()
    found = session(plain.files[0]).run(None, {"pixel_values": x.numpy()})[0]
    assert np.abs(found - expected).max() < 1e-5


def test_onnx_says_what_was_found_and_what_it_is(plain: ExportResult, folder: Path) -> None:
    assert plain.max_difference < 1e-5
    assert plain.sizes == ("32x32", "40x48")
    assert [path.name for path in folder.iterdir() if path.suffix == ".onnx"] == ["any.onnx"]
    opened = session(plain.files[0])
    assert opened.get_inputs()[0].shape == ["batch", 3, "height", "width"]
    assert opened.get_outputs()[0].name == "logits"
    assert opened.get_outputs()[0].shape[0] == "batch"
    told = opened.get_modelmeta().custom_metadata_map
    assert json.loads(told["classes"]) == list(NAMES)
    assert json.loads(told["vitrail.preprocess"])["mean"] == list(PREPROCESS.mean)
    onnx.checker.check_model(plain.files[0])


def test_how_deep_images_are_read_is_said(tmp_path: Path) -> None:
    """The graph takes 8 bits; what becomes 0 and 255 is not part of it."""
    read = replace(PREPROCESS, reading=Reading(levels=(100, 4095), page=2))
    written = export(Predictor(make(preprocess=read)), tmp_path / "deep.onnx", to="onnx")
    said = (
        "take page 2 of TIFFs; scale images of more than 8 bits to "
        "255 * (value - 100) / (4095 - 100), rounded and clipped to [0, 255]"
    )
    assert written.reading == said
    assert f"before that: {said}" in list(written.summary())
    told = session(written.files[0]).get_modelmeta().custom_metadata_map
    assert told["vitrail.reading"] == said
    assert json.loads(told["vitrail.preprocess"])["reading"] == {"levels": [100, 4095], "page": 2}


def test_a_reading_is_explained_as_it_is_done() -> None:
    values = np.array([[0, 99, 100, 777, 2048, 4095, 5000]], np.uint16)
    for levels in ((100.0, 4095.0), (0.0, 4095.0)):
        formula = Reading(levels=levels).explain().partition(" to ")[2].partition(",")[0]
        expected = [eval(formula, {"value": value}) for value in values[0].tolist()]
        found = to_bytes(values[..., None], levels)[0, :, 0]
        np.testing.assert_array_equal(found, np.clip(np.rint(expected), 0, 255))


def test_a_page_that_can_not_read_so_is_not_written(tmp_path: Path) -> None:
    for reading in (Reading(levels=(0, 4095)), Reading(page="max")):
        model = Predictor(make(preprocess=replace(PREPROCESS, reading=reading)))
        said = refusal(export, model, tmp_path / "page", to="web")
        assert f"the model reads files with{str(reading).replace(',', ' ')}, but a browser" in said
    assert not list(tmp_path.iterdir())


def open_as_told(written: ExportResult) -> str:
    """Run the command that an export prints, and give what it says."""
    assert f"to use it: {written.use}" in list(written.summary())
    python, option, code = shlex.split(written.use or "")
    assert (python, option) == ("python", "-c")
    with redirect_stdout(io.StringIO()) as printed:
        exec(code, {})
    return printed.getvalue()


def test_every_export_says_how_it_is_opened(predictor: Predictor, tmp_path: Path) -> None:
    here = tmp_path / "my 'models'"
    here.mkdir()
    assert "shape=['batch', 3, 32, 32]" in open_as_told(
        export(predictor, here / "a.onnx", to="onnx")
    )
    pytest.importorskip("openvino")
    assert "CompiledModel" in open_as_told(export(predictor, here / "b", to="openvino"))
    assert "GraphModule" in open_as_told(export(predictor, here / "c.pt2", to="pt2"))
    page = use_command("web", [here / "page" / "index.html", here / "page" / "model.json"])
    assert shlex.split(page)[1:] == ["-m", "http.server", "--directory", str(here / "page")]


def test_images_may_have_another_size_than_the_positions(folder: Path) -> None:
    """DINOv2's positions are those of 518 pixels, and its images have 224."""
    other = Predictor(make(preprocess=replace(PREPROCESS, size=(48, 40))))
    written = export(other, folder / "other.pt2", to="pt2")
    assert (written.sizes, written.max_difference < 1e-5) == (("48x40",), True)
    assert torch.export.load(written.files[0]).module()(inputs(3, 48, 40)).shape == (3, 7)


def test_onnx_normalizes_bytes_inside(predictor: Predictor, folder: Path) -> None:
    written = export(predictor, folder / "bytes.onnx", to="onnx", input="uint8-nhwc")
    pixels = np.stack([photo(32, 32), photo(32, 32)[::-1]])
    expected = predictor.run(torch.from_numpy(pixels.copy())).numpy()
    found = session(written.files[0]).run(None, {"images": pixels})[0]
    assert np.abs(found - expected).max() < 1e-5


@pytest.mark.parametrize("form", ["float", "uint8-nchw", "uint8-nhwc"])
def test_every_form_is_the_same_model(predictor: Predictor, form: Any) -> None:
    module = ExportModule(predictor, form).eval()
    pixels = torch.from_numpy(np.stack([photo(32, 32)] * 2))
    with torch.no_grad():
        expected = predictor.model(normalize(pixels, PREPROCESS))
        assert torch.allclose(module(module.to_input(pixels)), expected, atol=1e-6)


def test_openvino_is_a_folder_of_its_own(predictor: Predictor, folder: Path) -> None:
    openvino = pytest.importorskip("openvino")
    written = export(predictor, folder / "openvino", to="openvino")
    assert [file.name for file in written.files] == ["model.bin", "model.xml"]
    assert written.max_difference < 1e-5
    model = openvino.Core().read_model(folder / "openvino" / "model.xml")
    assert json.loads(model.get_rt_info(["classes"]).value) == list(NAMES)
    x = inputs(3)
    with torch.no_grad():
        expected = predictor.model(x)
    found = open_openvino(folder / "openvino" / "model.xml")(x)
    assert (found - expected).abs().max() < 1e-5
    assert "is an existing folder" in refusal(export, predictor, folder / "openvino", to="openvino")


def test_pt2_is_torchs_own(predictor: Predictor, folder: Path) -> None:
    written = export(predictor, folder / "model.pt2", to="pt2")
    assert written.max_difference < 1e-6
    told = {"classes.json": ""}
    program = torch.export.load(written.files[0], extra_files=told)
    assert json.loads(told["classes.json"]) == list(NAMES)
    x = inputs(4)
    with torch.no_grad():
        assert torch.allclose(program.module()(x), predictor.model(x), atol=1e-6)


@pytest.mark.parametrize("name", ["ViT/8@32,depth=1,width=32,heads=2,"
    "mlp=64,classes=3,pool=map,position=sincos-2d", "ViT/8@32,depth=1,width=32,heads=2,mlp=64,"
    "classes=3,position=relative,position_at=shared"])  # fmt: skip
def test_every_family_is_traced_for_any_batch(name: str) -> None:
    module = ExportModule(Predictor(make(name)), "float")
    program = trace(module).module()
    for count in (1, 3):
        x = inputs(count)
        with torch.no_grad():
            assert torch.allclose(program(x), module(x), atol=1e-5)


KINDS = [
    "rotary=axial,rotary_grid=16,sub_norm=both,key_bias=false,activation=swiglu,pool=gap",
    "position=none,rotary=centered,registers=2,key_heads=1,norm=rms,qk_norm=true",
    "rotary=mixed,pool=map,unpooled_class_token=true,pool_prefix=true,pool_heads=2",
    "position=relative-mlp,position_at=every-layer,norm_place=post,pool=gap",
    "position=factorized,position_resize=timm-square,block=parallel,attention=differential",
    "pool=probe,position=sincos-2d-mae,activation=geglu,patch_norm=true",
    "branches=2,pool=token-gap,registers=2,position_resize=dinov2",
]


@pytest.mark.parametrize("options", slow_but(KINDS[:1], KINDS))
def test_kinds_of_vit_run_at_any_size(tmp_path: Path, options: str) -> None:
    kind = Predictor(make(f"ViT/8@32,depth=1,width=48,heads=3,mlp=64,classes=7,{options}"))
    written = export(kind, tmp_path / "kind.onnx", to="onnx", any_size=True)
    assert written.sizes == ("32x32", "40x48")
    x = inputs(3, 24, 56)
    with torch.no_grad():
        expected = kind.model(x).numpy()
    found = session(written.files[0]).run(None, {"pixel_values": x.numpy()})[0]
    assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("to", "said"),
    [
        ("onnx", "this needs onnx, onnxscript, onnxruntime: pip install 'vitrail[onnx]'"),
        ("web", "this needs onnx, onnxscript, onnxruntime: pip install 'vitrail[onnx]'"),
        ("openvino", "this needs onnx, onnxscript, openvino: pip install 'vitrail[onnx,openvino]'"),
        ("executorch", "this needs executorch: pip install executorch"),
    ],
)
def test_missing_packages_are_all_said_before_a_model_is_looked_for(
    to: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert refusal(export, "no such model", tmp_path / "out", to=to) == said


def test_tables_of_offsets_are_exported_for_one_size(tmp_path: Path) -> None:
    beit = "ViT/8@32,depth=1,width=32,heads=2,mlp=64,classes=7,position=relative-2d"
    kind = Predictor(make(f"{beit},position_at=every-layer,key_bias=false"))
    assert export(kind, tmp_path / "kind.onnx", to="onnx").max_difference < 1e-5
    assert "export without --any-size" in refusal(
        export, kind, tmp_path / "any.onnx", to="onnx", any_size=True
    )


@pytest.mark.parametrize(
    ("to", "options", "said"),
    [
        ("onyx", {}, "did you mean 'onnx'"),
        ("executorch", {}, "pip install executorch"),
        ("pt2", {"any_size": True}, "--any-size requires --to onnx or openvino"),
        ("onnx", {"aot": True}, "--aot requires --to pt2"),
    ],
)
def test_what_can_not_be_exported(
    predictor: Predictor, tmp_path: Path, to: str, options: Any, said: str
) -> None:
    assert said in refusal(export, predictor, tmp_path / "out", to=to, **options)
    assert not list(tmp_path.iterdir())


def test_no_place_to_write(predictor: Predictor, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    assert "cannot be written" in refusal(
        export, predictor, tmp_path / "file" / "a.onnx", to="onnx"
    )
    assert "cannot be written" in refusal(export, predictor, Path("/proc/none/a.onnx"), to="onnx")
    assert "no folder or dataset" in refusal(
        export, predictor, tmp_path / "a.onnx", to="onnx", data="nowhere"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let no file grow over 16 kB, once there is something to write."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    def traced(*args: Any, **options: Any) -> Any:
        program = trace(*args, **options)
        resource.setrlimit(resource.RLIMIT_FSIZE, (16_000, before[1]))
        return program

    monkeypatch.setattr(export_room, "trace", traced)
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.usefixtures("full_disk")
@pytest.mark.parametrize("to", ["onnx", "pt2"])
def test_a_full_disk_leaves_the_old_file(
    predictor: Predictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    large = SimpleNamespace(SerializeToString=lambda: os.urandom(100_000))
    monkeypatch.setattr(writers_room, "make_onnx", lambda *_: large)
    (tmp_path / "old").write_text("old")
    assert "cannot be written" in refusal(export, predictor, tmp_path / "old", to=to)
    assert (tmp_path / "old").read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


def test_openvino_that_can_not_write_leaves_nothing(
    predictor: Predictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    openvino = pytest.importorskip("openvino")

    def save(model: Any, path: Path, **options: Any) -> None:
        path.write_text("half")
        raise RuntimeError("basic_ios::clear: iostream error")  # what it says of a full disk

    monkeypatch.setattr(openvino, "save_model", save)
    said = refusal(export, predictor, tmp_path / "folder", to="openvino")
    assert said.startswith("folder: cannot be written by OpenVINO")
    assert not list(tmp_path.iterdir())


def test_what_answers_otherwise_is_not_written(
    predictor: Predictor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(context: Any, part: Path) -> Any:
        part.write_text("wrong")
        return lambda x: context.module(x) + 2e-3

    monkeypatch.setitem(export_room.WRITERS, "onnx", write)
    said = refusal(export, predictor, tmp_path / "a.onnx", to="onnx")
    assert "differs from PyTorch by" in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("place", ["../../etc/passwd", "weights.bin"])
def test_weights_in_other_files_are_not_opened(
    plain: ExportResult, tmp_path: Path, place: str
) -> None:
    model = onnx.load(plain.files[0])
    tensor = max(model.graph.initializer, key=lambda tensor: len(tensor.raw_data))
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", place
    (tmp_path / "bad.onnx").write_bytes(model.SerializeToString())
    said = refusal(open_onnx, tmp_path / "bad.onnx")
    assert place in said
    assert "only ONNX models in one file" in said
    (tmp_path / "text.onnx").write_text("no model")
    assert "is not an ONNX file" in refusal(open_onnx, tmp_path / "text.onnx")
    assert "No such file" in refusal(open_onnx, tmp_path / "none.onnx")


def test_command_says_the_files_and_the_difference(
    predictor: Predictor,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(Predictor, "load", lambda source, device, unsure: predictor)
    out = tmp_path / "model.pt2"
    main(["export", "any", str(out), "--to", "pt2", "--json"])
    row = json.loads(capsys.readouterr().out)
    assert row["files"] == [str(out)]
    assert row["max_difference"] < 1e-6
    with pytest.raises(SystemExit, match="2"):
        main(["export", "any", str(tmp_path / "x"), "--to", "torchscript"])
    assert "--to torchscript: expected one of onnx" in capsys.readouterr().err


def test_samples_are_spread_and_readable(tmp_path: Path) -> None:
    from tests.data.decoding.images import encode

    for kind in "ab":
        (tmp_path / "val" / kind).mkdir(parents=True)
        (tmp_path / "train" / kind).mkdir(parents=True)
        for number in range(6):
            content = b"bad" if number == 2 else encode(photo(20 + number, 30), "PNG")
            (tmp_path / "val" / kind / f"{number}.png").write_bytes(content)
            (tmp_path / "train" / kind / f"{number}.png").write_bytes(content)
    samples = take_samples(str(tmp_path), PREPROCESS, count=6)
    assert len(samples) == 6
    assert set(samples.labels or ()) == {0, 1}
    assert samples.inputs((16, 24)).shape == (6, 16, 24, 3)
    assert len(take_samples(str(tmp_path), PREPROCESS, count=100)) == 10


def test_class_names_that_are_not_utf8_are_escaped(folder: Path) -> None:
    odd = Predictor(replace(make(), classes=("caf\udce9", *NAMES[1:])))
    told = {"classes.json": ""}
    torch.export.load(export(odd, folder / "odd.pt2", to="pt2").files[0], extra_files=told)
    assert json.loads(told["classes.json"]) == ["caf\\xe9", *NAMES[1:]]
