"""The predictor: every kind of image, alone and in any batch, with the values of a plain run."""

import csv
import io
import json
import math
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from tests.data.decoding.images import encode, exif, photo
from tests.parity import peers
from tests.predictors import FUSED, NAMES, PREPROCESS, TINY, make
from tests.shelf import refusal
from vitrail.cli import main
from vitrail.data.datasets.builtin.digits import open_digits
from vitrail.data.decoding.decode import ImageError
from vitrail.data.image_inputs import find_images
from vitrail.data.transforms.apply import eval_image, normalize
from vitrail.data.transforms.preprocess import Preprocess
from vitrail.inspection.attention import attention_masks
from vitrail.inspection.overlay import overlay
from vitrail.models import ViT, parse
from vitrail.models.layers.mlp import MLP
from vitrail.predictor import BatchingConfig, Prediction, Predictor
from vitrail.predictor.batching_config import default_batching
from vitrail.predictor.fused import fuse
from vitrail.predictor.last_block import LastBlock, prune_last_block
from vitrail.predictor.prediction_files import csv_writer
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.loaded import save
from vitrail.weights.model_folder import save_folder


@pytest.fixture
def predictor() -> Predictor:
    return Predictor(make(), batching=BatchingConfig(batch_size=3, workers=2, threads=1))


def plain(predictor: Predictor, content: bytes | np.ndarray) -> torch.Tensor:
    """Compute an image's logits by hand."""
    pixels = torch.from_numpy(eval_image(content, predictor.preprocess))[None]
    with torch.no_grad():
        return predictor.model(normalize(pixels, predictor.preprocess))[0]


def written(content: bytes) -> io.BytesIO:
    """Write bytes to a file in memory, at whose end it then stands, as Pillow's `save` does."""
    file = io.BytesIO()
    file.write(content)
    return file


KINDS: dict[str, Callable[[np.ndarray, Path], object]] = {
    "path": lambda pixels, path: path,
    "text": lambda pixels, path: str(path),
    "bytes": lambda pixels, path: path.read_bytes(),
    "bytearray": lambda pixels, path: bytearray(path.read_bytes()),
    "memoryview": lambda pixels, path: memoryview(path.read_bytes()),
    "BytesIO": lambda pixels, path: written(path.read_bytes()),
    "open file": lambda pixels, path: path.open("rb"),
    "Pillow": lambda pixels, path: Image.fromarray(pixels),
    "opened": lambda pixels, path: Image.open(path),
    "array": lambda pixels, path: pixels,
    "tensor": lambda pixels, path: torch.from_numpy(pixels).permute(2, 0, 1),
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_image_gives_the_same(predictor: Predictor, tmp_path: Path, kind: str) -> None:
    pixels, path = photo(40, 60), tmp_path / "image.png"
    path.write_bytes(encode(pixels, "PNG"))
    expected = plain(predictor, pixels)
    image: object = KINDS[kind](pixels, path)
    found = predictor.logits(image)  # pyright: ignore[reportArgumentType]
    assert torch.allclose(found, expected, atol=1e-5)
    predict: Any = predictor.predict
    one = predict(image)
    assert isinstance(one, Prediction)
    assert len(predict([image, image])) == 2
    if isinstance(image, io.BufferedReader):
        image.close()


def test_top_classes_are_named_with_their_softmax(predictor: Predictor) -> None:
    logits = plain(predictor, photo(40, 60)).double()
    found = predictor.predict(photo(40, 60), top=3)
    order = logits.argsort(descending=True)[:3].tolist()
    assert [score.index for score in found.top] == order
    assert [score.label for score in found.top] == [NAMES[place] for place in order]
    expected = (logits.exp() / logits.exp().sum())[order]
    assert [score.probability for score in found.top] == pytest.approx(expected.tolist(), rel=1e-6)
    assert (found.index, found.label) == (order[0], NAMES[order[0]])
    assert len(predictor.predict(photo(40, 60), top=100).top) == 7
    assert "top must be at least 1" in refusal(predictor.predict, photo(8, 8), top=0)


def test_a_sigmoid_model_has_sigmoids_and_thresholds() -> None:
    limits = (0.9, 0.99, 0.01, 0.5, 0.5, 0.5, 0.5)
    several = Predictor(replace(make(), activation="sigmoid", thresholds=limits))
    (top,) = several.rank(torch.tensor([[4.0, 4.0, -4.0, -9, -9, -9, -9]]), top=3)
    high, low = 1 / (1 + math.exp(-4)), 1 / (1 + math.exp(4))
    assert [score.index for score in top] == [0, 2, 1]  # the predicted ones first
    assert [score.probability for score in top] == pytest.approx([high, low, high], rel=1e-6)
    assert [score.predicted for score in top] == [True, True, False]
    assert top[0].to_dict() == {
        "index": 0, "label": "cat", "probability": top[0].probability, "predicted": True
    }  # fmt: skip
    again = several.with_engine(None, several.batching)
    assert (again.activation, again.thresholds) == ("sigmoid", limits)


def test_a_sigmoid_model_without_thresholds_predicts_from_one_half_on() -> None:
    plain = Predictor(replace(make(), activation="sigmoid"))
    (top,) = plain.rank(torch.tensor([[0.0, -0.1, -4.0, -9, -9, -9, -9]]), top=2)
    assert [(score.probability >= 0.5, score.predicted) for score in top] == [
        (True, True), (False, False)
    ]  # fmt: skip


def test_no_label_of_a_sigmoid_model_is_cut_off() -> None:
    several = Predictor(replace(make(), activation="sigmoid"))
    (top,) = several.rank(torch.tensor([[1.0, 3.0, 2.0, -9, -9, -9, -9]]), top=1)
    assert [score.index for score in top] == [1, 2, 0]
    found = Prediction("a.png", top)
    assert found.labels == tuple(score.label for score in top)
    assert list(found.to_dict()) == ["path", "labels", "top"]
    (none,) = several.rank(torch.full((1, 7), -5.0), top=2)
    assert len(none) == 2
    assert Prediction("a.png", none).to_dict()["labels"] == []


def test_a_softmax_model_has_one_label(predictor: Predictor) -> None:
    (top,) = predictor.rank(torch.tensor([[1.0, 3.0, 2.0, 0, 0, 0, 0]]), top=2)
    found = Prediction("a.png", top)
    assert found.labels == (found.label,)
    assert list(found.to_dict()) == ["path", "top"]


def test_logits_agree_if_they_lead_to_the_same_prediction(predictor: Predictor) -> None:
    first = torch.tensor([[4.0, 3, 1, 0, 0, 0, 0], [4.0, 3, -1, -2, -2, -2, -2]])
    second = torch.tensor([[4.0, 3, 2, 0, 0, 0, 0], [3.0, 4, -1, -2, -2, -2, -2]])
    assert predictor.same_predictions(first, second).tolist() == [True, False]
    limits = (0.5, 0.5, 0.8, 0.5, 0.5, 0.5, 0.5)  # between the two of the first image
    several = Predictor(replace(make(), activation="sigmoid", thresholds=limits))
    assert several.same_predictions(first, second).tolist() == [False, True]


def test_classes_without_names_are_numbered() -> None:
    nameless = Predictor(make("ViT/8@32,depth=1,width=32,heads=2,mlp=64,classes=3"))
    found = nameless.predict(photo(40, 60))
    assert sorted(score.label for score in found.top) == ["0", "1", "2"]


def test_equal_classes_come_in_their_order(predictor: Predictor) -> None:
    found = predictor.rank(torch.zeros(1, 7), top=4)[0]
    assert [score.index for score in found] == [0, 1, 2, 3]


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes=st.lists(st.tuples(st.integers(1, 70), st.integers(1, 70)), min_size=1, max_size=11))
def test_alone_and_in_any_batch(predictor: Predictor, sizes: list[tuple[int, int]]) -> None:
    images = [photo(*size) for size in sizes]
    together = predictor.logits(images)
    assert together.shape == (len(sizes), 7)
    for image, row in zip(images, together, strict=True):
        assert (predictor.logits(image) - row).abs().max() < 1e-5


def test_stacks_of_images_are_many(predictor: Predictor) -> None:
    stack = np.stack([photo(40, 60), photo(40, 60)[::-1]])
    expected = torch.stack([plain(predictor, each) for each in stack])
    assert torch.allclose(predictor.logits(stack), expected, atol=1e-5)
    channels_first = torch.from_numpy(stack).permute(0, 3, 1, 2)
    assert torch.equal(predictor.logits(channels_first), predictor.logits(stack))
    assert isinstance(predictor.predict(stack), list)


def test_floating_point_tensors_are_the_models_own_input(predictor: Predictor) -> None:
    inputs = torch.randn(3, 32, 48)  # of a size that the patch divides
    with torch.no_grad():
        expected = predictor.model(inputs[None])[0]
    assert torch.allclose(predictor.logits(inputs), expected, atol=1e-5)
    mixed = predictor.logits([photo(40, 60), inputs, photo(9, 9)])
    assert torch.allclose(mixed[1], expected, atol=1e-5)
    assert torch.allclose(mixed[2], plain(predictor, photo(9, 9)), atol=1e-5)


def test_embeddings_are_the_pre_logits(predictor: Predictor) -> None:
    pixels = predictor.prepare(photo(40, 60))[None]
    with torch.no_grad():
        expected = predictor.model.features(normalize(pixels, PREPROCESS))[0]
    assert torch.allclose(predictor.embed(photo(40, 60)), expected, atol=1e-5)
    assert predictor.embed([photo(40, 60)] * 4).shape == (4, 32)


def test_attention_is_inspections_and_lies_on_the_image(predictor: Predictor) -> None:
    pixels = photo(48, 80)
    x = normalize(predictor.prepare(pixels)[None], PREPROCESS)
    expected = attention_masks(predictor.model, x).values[0]
    found = predictor.attention(encode(pixels, "PNG"))
    assert np.allclose(found, expected, atol=1e-5)
    laid = predictor.overlay(pixels)
    assert np.array_equal(laid, overlay(pixels, found, PREPROCESS))
    assert laid.shape == (48, 80, 3)
    convolutional = Predictor(make("BiT-R50x1@32,classes=7"))
    assert "has no patches" in refusal(convolutional.attention, pixels)
    assert np.allclose(predictor.attention(x[0]), expected, atol=1e-5)  # the model's own input


@pytest.mark.parametrize("channels", [2, 5])
def test_images_of_many_channels_are_overlaid_too(channels: int, tmp_path: Path) -> None:
    rule = Preprocess(
        size=(32, 32), mean=(0.5,) * channels, std=(0.5,) * channels,
        interpolation="bilinear", fit="crop",
    )  # fmt: skip
    several = Predictor(make(f"{TINY.name},channels={channels}", rule))
    pixels = np.random.default_rng(0).integers(0, 256, (40, 60, channels), dtype=np.uint8)
    np.save(tmp_path / "many.npy", pixels)
    laid = several.overlay(pixels)
    assert laid.shape == (40, 60, 3)
    assert np.array_equal(several.overlay(tmp_path / "many.npy"), laid)


def test_one_image_has_one_answer(predictor: Predictor, tmp_path: Path) -> None:
    """A path is not taken for a list of letters, nor pixels for a list of rows."""
    path = tmp_path / "cat.png"
    path.write_bytes(encode(photo(40, 60), "PNG"))
    for one in (str(path), path.read_bytes(), photo(40, 60)):
        (output,) = predictor.outputs(one)
        assert output.values is not None
        assert torch.allclose(output.values, predictor.logits(path), atol=1e-5)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("opened", [False, True])
def test_images_are_turned_upright(predictor: Predictor, orientation: int, *, opened: bool) -> None:
    file = encode(photo(40, 60), "PNG", exif=exif(orientation))
    image = Image.open(io.BytesIO(file)) if opened else file
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(file)))
    expected = plain(predictor, np.array(upright))
    assert torch.allclose(predictor.logits(image), expected, atol=1e-5)


def test_other_modes_are_taken_as_their_files_are(predictor: Predictor) -> None:
    for mode in ("L", "P", "RGBA", "LA", "CMYK", "1", "I;16"):
        image = Image.fromarray(photo(40, 60)).convert("L" if mode == "I;16" else mode)
        if mode == "I;16":
            image = Image.fromarray(np.asarray(image).astype(np.uint16) * 257)
        file = encode(image, "TIFF" if mode == "CMYK" else "PNG")
        assert torch.allclose(predictor.logits(image), predictor.logits(file), atol=1e-5), mode


def test_bad_images_are_named_with_the_reason(predictor: Predictor, tmp_path: Path) -> None:
    good, cut, gone = (tmp_path / name for name in ("good.png", "cut.png", "gone.png"))
    good.write_bytes(encode(photo(40, 60), "PNG"))
    cut.write_bytes(good.read_bytes()[:-60])
    images = [good, cut, gone, tmp_path, b"text", np.zeros((4, 4, 2), np.uint8), good]
    found = list(predictor.predictions(images))
    assert [each.error is None for each in found] == [True, *[False] * 5, True]
    assert [each.path for each in found] == [
        *map(str, (good, cut, gone, tmp_path)), "image 4", "image 5", str(good)
    ]  # fmt: skip
    kinds = [each.error_kind for each in found if each.error]
    assert kinds[:4] == ["truncated", "unreadable", "unreadable", "not an image"]
    with pytest.raises(ImageError, match=r"cut\.png: truncated"):
        predictor.predict([good, cut])
    with pytest.raises(ImageError, match="expected uint8"):
        predictor.predict(np.zeros((4, 4, 3)))
    assert (
        "an image must be a path, bytes, an open file, a Pillow image, an array or a tensor"
        in refusal(predictor.predict, [3])
    )
    assert "no images" in refusal(predictor.predict, [])


def test_a_dataset_is_predicted_in_order(predictor: Predictor) -> None:
    digits = open_digits("val")
    some = [digits.read(index) for index in range(20)]
    answers = [output.values for output in predictor.outputs(digits)]
    assert len(answers) == len(digits)
    for image, output in zip(some, answers[:20], strict=False):
        assert output is not None
        assert torch.allclose(output, plain(predictor, image), atol=1e-5)


def test_eval_mode_and_threads_stay(predictor: Predictor) -> None:
    noisy = Predictor(
        make("ViT/8@32,depth=2,width=32,heads=2,mlp=64,classes=7,dropout=0.5"),
        batching=BatchingConfig(batch_size=1, workers=2, threads=1),
    )
    before = torch.get_num_threads()
    first = noisy.logits(photo(40, 60))
    noisy.model.train()
    assert torch.allclose(noisy.logits([photo(40, 60)] * 5), first.expand(5, -1), atol=1e-5)
    assert torch.get_num_threads() == before


def test_many_threads_share_a_predictor(predictor: Predictor) -> None:
    images = [photo(20 + n, 40) for n in range(24)]
    expected = torch.stack([plain(predictor, each) for each in images])
    found: dict[int, torch.Tensor] = {}

    def work(place: int) -> None:
        found[place] = predictor.logits(images[place])

    threads = [threading.Thread(target=work, args=(place,)) for place in range(len(images))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    got = torch.stack([found[place] for place in range(len(images))])
    assert torch.allclose(got, expected, atol=1e-5)


@pytest.mark.parametrize("more", FUSED)
def test_fused_layers_are_the_models(more: str) -> None:
    model = make(f"ViT/8@32,depth=2,width=32,heads=2,mlp=64,classes=7{more}").model.eval()
    fast = fuse(model)
    assert fast is not model
    x = torch.randn(5, 3, 32, 40)
    with torch.inference_mode():
        assert torch.allclose(fast(x), model(x), atol=1e-5)
        assert torch.allclose(fast.features(x), model.features(x), atol=1e-5)


SHORTENED = [
    ("", True), (",qkv_bias=false,registers=2", True), (",distilled=true", True),
    (",layer_scale=0.5,position_at=every-layer", True), (",pool=gap", False),
    (",qk_norm=true", False), (",rotary=axial", False), (",key_bias=false", False),
    (",sub_norm=both", False), (",sub_norm=mlp,norm_place=post,last_norm=pooled", True),
    (",position=relative,position_at=shared", False),
]  # fmt: skip


@pytest.mark.parametrize(("more", "shorter"), SHORTENED)
def test_the_last_block_is_for_what_the_head_reads(more: str, shorter: bool) -> None:
    model = make(f"ViT/8@32,depth=2,width=32,heads=2,mlp=64,classes=7{more}").model.eval()
    short = prune_last_block(model)
    assert isinstance(model, ViT)
    assert isinstance(short, ViT)
    assert isinstance(short.blocks[-1], LastBlock) is shorter
    x = torch.randn(5, 3, 32, 40)
    with torch.inference_mode():
        assert torch.allclose(short(x), model(x), atol=1e-5)
        assert torch.allclose(short.features(x), model.features(x), atol=1e-5)
        assert (short.encode(x).shape[1] < model.encode(x).shape[1]) is shorter


def test_an_inference_copy_has_no_hooks_of_the_model() -> None:
    model, x = make().model.eval(), torch.randn(1, 3, 32, 32)
    fast, heard = fuse(model), list[str]()
    before = fast(x)
    model.register_forward_hook(lambda *_: heard.append("called"))
    assert torch.equal(fuse(model)(x), before)
    assert not heard


def test_usual_layers_stay_where_there_are_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(2, 3, 32, 32)
    convolutional, half = make("BiT-R50x1@32,classes=7").model.eval(), make().model.bfloat16()
    with torch.inference_mode():
        assert torch.equal(fuse(convolutional)(x), convolutional(x))
        assert all(parameter.dtype == torch.bfloat16 for parameter in fuse(half).parameters())
        model = make().model.eval()
        monkeypatch.setattr("vitrail.predictor.fused._GELU", {"gelu-tanh": "no such form"})
        unchanged = fuse(model)
        assert any(isinstance(part, MLP) for part in unchanged.modules())
        assert torch.allclose(unchanged(x), model(x), atol=1e-5)


def test_models_without_classes_only_embed() -> None:
    bare = Predictor(make("ViT/8@32,depth=1,width=32,heads=2,mlp=64,classes=0"), name="dinov2:x")
    assert bare.embed(photo(9, 9)).shape == (32,)
    assert refusal(bare.predict, photo(9, 9)) == (
        "dinov2:x has no classes; use embed to compute features"
    )


def test_a_model_folder_is_loaded_whole(tmp_path: Path) -> None:
    loaded = make()
    tensors = {name: tensor.detach() for name, tensor in loaded.model.state_dict().items()}
    bundle = Checkpoint(spec=TINY, tensors=tensors, classes=NAMES, preprocess=PREPROCESS)
    save_folder(bundle, tmp_path / "run" / "model")
    for source in (tmp_path / "run", f"run:{tmp_path / 'run'}", tmp_path / "run" / "model"):
        predictor = Predictor.load(source)
        assert predictor.classes == NAMES
        expected = plain(Predictor(loaded), photo(40, 60))
        assert torch.allclose(predictor.logits(photo(40, 60)), expected, atol=1e-5)
    save_folder(Checkpoint(spec=TINY, tensors=tensors, classes=NAMES), tmp_path / "bare")
    assert "how images are preprocessed" in refusal(Predictor.load, tmp_path / "bare")


def test_batching_follows_the_model() -> None:
    small, large = default_batching(parse("ViT-Ti/16")), default_batching(parse("ViT-L/16@384"))
    assert (small.batch_size, large.batch_size) == (8, 1)
    assert default_batching(parse("ViT-Ti/4@32")).batch_size > small.batch_size
    assert default_batching(parse("BiT-R50x1")).batch_size >= 1
    assert "each must be at least 1" in refusal(
        lambda: BatchingConfig(batch_size=0, workers=1, threads=1)
    )


def test_images_of_folders_are_found(tmp_path: Path) -> None:
    for name in (
        "b/2.jpg",
        "b/1.png",
        "a.webp",
        ".hidden.jpg",
        "b/.DS_Store",
        "b/left.txt",
        "notes.bin",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "loop").symlink_to(tmp_path)
    found = [Path(path).relative_to(tmp_path).as_posix() for path in find_images([tmp_path])]
    assert found == ["a.webp", "b/1.png", "b/2.jpg", "notes.bin"]
    assert find_images([tmp_path / "a.webp"] * 2) == [str(tmp_path / "a.webp")] * 2
    assert "did you mean 'a.webp'" in refusal(find_images, [tmp_path / "a.web"])
    (tmp_path / "empty").mkdir()
    assert "has no images" in refusal(find_images, [tmp_path / "empty"])


@pytest.mark.filterwarnings("ignore::UserWarning:PIL", "ignore::PIL.Image.DecompressionBombWarning")
def test_odd_images_are_answered_or_refused_with_a_reason(
    predictor: Predictor, odd_images: Path
) -> None:
    with (odd_images / "MANIFEST.tsv").open(newline="", encoding="utf-8") as file:
        names = [row["file"] for row in csv.DictReader(file, delimiter="\t")]
    outputs = list(predictor.outputs([odd_images / name for name in names]))
    assert len(outputs) == len(names) > 280
    used = [output for output in outputs if output.values is not None]
    assert len(used) > 100
    for output in outputs:
        if output.values is not None:
            assert output.values.isfinite().all()
        else:
            assert output.error is not None
            assert str(output.error)


def test_published_weights_answer_as_timm_does(timm_tiny: Path) -> None:
    peers.mend_torchvision()
    timm, data = peers.load("timm"), peers.load("timm.data")
    checkpoint = str(timm_tiny / "model.safetensors")
    theirs = timm.create_model(timm_tiny.name, pretrained=False, checkpoint_path=checkpoint)
    transform = data.create_transform(**data.resolve_model_data_config(theirs), is_training=False)
    file = encode(photo(300, 450), "JPEG", quality=90)
    with torch.no_grad():
        expected = theirs.eval()(transform(Image.open(io.BytesIO(file)))[None])[0]
    found = Predictor.load(timm_tiny)
    assert (found.logits(file) - expected).abs().max() < 1e-4
    best = found.predict(file, top=5)
    assert [score.index for score in best.top] == expected.topk(5).indices.tolist()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Save a model beside a folder with two good images and a bad one."""
    loaded = make()
    tensors = {name: tensor.detach() for name, tensor in loaded.model.state_dict().items()}
    names = ("[red]cat", *NAMES[1:])
    bundle = Checkpoint(spec=TINY, tensors=tensors, classes=names, preprocess=PREPROCESS)
    save_folder(bundle, tmp_path / "model")
    (tmp_path / "images").mkdir()
    for name, content in (("a.png", photo(40, 60)), ("b.png", photo(60, 40))):
        (tmp_path / "images" / name).write_bytes(encode(content, "PNG"))
    (tmp_path / "images" / "notes.bin").write_text("hello")
    return tmp_path


def test_command_prints_one_line_per_image(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["predict", str(folder / "model"), str(folder / "images"), "--top", "2", "--json"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [Path(row["path"]).name for row in rows] == ["a.png", "b.png", "notes.bin"]
    expected = Predictor.load(folder / "model").predict(photo(40, 60), top=2)
    for found, score in zip(rows[0]["top"], expected.top, strict=True):
        assert found == {
            **score.to_dict(),
            "probability": pytest.approx(score.probability, abs=1e-5),
        }
    assert rows[2] == {"path": rows[2]["path"], "error": "not an image but text"}


def test_command_prints_a_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["predict", str(folder / "model"), str(folder / "images"), "--top", "7"])
    out = capsys.readouterr().out
    assert out.count("%") == 14
    assert out.count("[red]cat") == 2  # a name is no markup
    assert "notes.bin: not an image but text" in out


def test_command_writes_tables(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    files = ["--csv", str(folder / "a.csv"), "--parquet", str(folder / "a.parquet")]
    main(["predict", str(folder / "model"), str(folder / "images"), "--top", "3", *files])
    assert "2 of 3 images" in capsys.readouterr().out
    with (folder / "a.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["rank"] for row in rows] == ["1", "2", "3", "1", "2", "3", ""]
    assert rows[-1]["error"] == "not an image but text"
    table = parquet.read_table(folder / "a.parquet").to_pylist()
    assert [score["label"] for score in table[0]["top"]] == [row["label"] for row in rows[:3]]
    assert (table[2]["top"], table[2]["error"]) == (None, "not an image but text")
    left = {path.name for path in folder.iterdir()}
    assert left == {"model", "images", "a.csv", "a.parquet"}
    strange = str(folder / "\udcff.parquet")  # a name that is not UTF-8, which pyarrow can't open
    main(["predict", str(folder / "model"), str(folder / "images"), "--parquet", strange])
    assert Path(strange).stat().st_size > 1000


def test_command_gives_the_labels_of_a_multi_label_model(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    several = replace(make(), activation="sigmoid", thresholds=(0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0))
    save(several, folder / "several")
    command = ["predict", str(folder / "several"), str(folder / "images" / "a.png")]
    main([*command, "--top", "3", "--json"])
    row = json.loads(capsys.readouterr().out)
    assert (sorted(row["labels"]), len(row["top"])) == (["cat", "dog"], 3)
    assert [score["label"] for score in row["top"]][:2] == row["labels"]
    main([*command, "--top", "1"])
    out = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert out[1] == ["image", "class", "probability", "predicted"]
    assert [line[-1] for line in out[3:5]] == ["yes", "yes"]
    files = ["--csv", str(folder / "a.csv"), "--parquet", str(folder / "a.parquet")]
    main([*command, "--top", "3", *files])
    with (folder / "a.csv").open(newline="") as file:
        flags = {each["label"]: each["predicted"] for each in csv.DictReader(file)}
    assert [flags["cat"], flags["dog"], [*flags.values()][2]] == ["true", "true", "false"]
    (table,) = parquet.read_table(folder / "a.parquet").to_pylist()
    assert [score["predicted"] for score in table["top"]] == [True, True, False]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["MODEL"], "no images given"),
        (["MODEL", "none"], "no file or folder none"),
        (["MODEL", "IMAGES/notes.bin"], "no image could be read"),
        (["MODEL", "IMAGES", "--top", "0"], "--top 0: expected at least 1"),
        (["MODEL", "IMAGES", "--csv", "a", "--parquet", "a"], "are both a; give two names"),
        (["MODEL", "IMAGES", "--device", "warp"], "unknown device 'warp'"),
        (["MODEL", "IMAGES", "--csv", "/proc/none/a.csv"], "cannot be written"),
        (["MODEL", "IMAGES", "--csv", "IMAGES"], "is an existing folder"),
        (["none", "IMAGES"], "no file or folder 'none'"),
    ],
)
def test_command_refuses_in_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    places = {"MODEL": folder / "model", "IMAGES": folder / "images"}
    for word, place in places.items():
        arguments = [argument.replace(word, str(place)) for argument in arguments]
    with pytest.raises(SystemExit) as ended:
        main(["predict", *arguments])
    error = capsys.readouterr().err
    assert ended.value.code == 2
    assert said in error
    assert error.count("\n") == 1


def test_a_table_that_fails_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("old")

    def stopped() -> None:
        with csv_writer(path) as add:
            add(Prediction("a", (), "bad"))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["a.csv"]


def test_files_that_give_no_bytes_are_refused(predictor: Predictor, tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("x")
    with (tmp_path / "text.png").open() as file:
        assert "open(path, 'rb')" in refusal(predictor.predict, file)
    with pytest.raises(ImageError, match="can't be read: I/O operation on closed file"):
        predictor.predict(file)
    with pytest.raises(ImageError, match="empty"):
        predictor.predict(io.BytesIO())
