"""The page of an export in a real browser: what it answers, and that it asks nobody else."""

import json
import re
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

from tests.browser.accessible import check
from tests.browser.browsers import Tab
from tests.browser.fitting import assert_fits
from tests.data.decoding.images import encode, photo
from tests.deploy.serving import NAMES, PREPROCESS, doubtful, image, save_model, until
from vitrail.config import InputError, to_dict
from vitrail.data.transforms.apply import eval_image
from vitrail.data.transforms.preprocess import Fit, Interpolation, Preprocess
from vitrail.deploy.exporting.export import export
from vitrail.deploy.exporting.web_export import RUNTIME, read_runtime
from vitrail.predictor import Predictor
from vitrail.predictor.predictions import rank
from vitrail.weights.checkpoint import Activation

for package in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package)

EVIL = "<img src=x onerror=alert(1)><script>alert(2)</script>"
CLASSES = (EVIL, "b" * 90, *"cdefg")
DARK, LIGHT = "rgb(13, 17, 23)", "rgb(255, 255, 255)"


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Get onnxruntime-web once, as its package has it; skip where npm can't."""
    try:
        found = read_runtime(None)
    except InputError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("runtime")
    for name, (ours, _) in RUNTIME.items():
        (folder / name).write_bytes(found[ours])
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    place = tmp_path_factory.mktemp("web")
    doubts = doubtful(save_model(place / "plain", classes=CLASSES))
    made = save_model(place / "one & <b>", classes=CLASSES, uncertainty=doubts)
    return Predictor.load(made, unsure="5%")


@pytest.fixture(scope="module")
def folder(model: Predictor, runtime: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("out") / "page"
    export(model, out, to="web", runtime=runtime, quantize="float16-weights", images=8)
    return out


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


class Visit:
    """A page, and all that it said and asked for."""

    def __init__(self, browser: Any, address: str, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.said: list[str] = []
        self.asked: list[str] = []
        self.context.on("request", lambda request: self.asked.append(request.url))
        self.page = self.context.new_page()
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("dialog", lambda dialog: self.said.append(dialog.message))
        self.address = address
        self.page.goto(address)
        self.page.wait_for_selector('#status:text-is("Ready.")')

    def upload(self, data: bytes, name: str = "a.png", *, done: bool = True) -> None:
        file = {"name": name, "mimeType": "image/png", "buffer": data}
        self.page.set_input_files("#file", files=[file])
        if done:
            self.page.wait_for_selector('#status:text-is("Done.")')

    def shown(self) -> list[list[str]]:
        rows = self.page.locator(".bars li").all()
        return [row.locator("span").all_inner_texts() for row in rows]


@pytest.fixture
def visit(browser: Any, address: str) -> Iterator[Visit]:
    opened = Visit(browser, address)
    yield opened
    opened.context.close()
    assert opened.said == []
    assert {url.rpartition("/")[2] for url in opened.asked} >= {"model.onnx", "onnxruntime.wasm"}
    assert all(url.startswith(opened.address) for url in opened.asked)


@pytest.mark.parametrize("content", [image(1, height=32, width=32), image(2)])
def test_a_image_is_answered_as_by_the_predictor(
    visit: Visit, model: Predictor, content: bytes
) -> None:
    visit.upload(content, f"{EVIL}.png".replace("/", ""))
    expected = model.predict(content).top
    assert [label for label, _ in visit.shown()] == [score.label for score in expected]
    for (_, value), score in zip(visit.shown(), expected, strict=True):
        assert float(value.removesuffix(" %")) == pytest.approx(100 * score.probability, abs=0.2)
    assert visit.page.inner_text("h2") == "one & <b>"
    assert visit.page.inner_text("#name") == f"{EVIL}.png".replace("/", "")
    assert visit.page.locator("#seen:visible").count() == 1
    said = visit.page.inner_text(".about")
    assert re.fullmatch(r"Vision Transformer ViT\S*, 7 classes, sees \d+ x \d+ pixels", said)
    image, answer = (visit.page.locator(each).bounding_box() for each in ("#seen", ".bars"))
    assert image is not None
    assert answer is not None
    assert image["x"] + image["width"] <= answer["x"]  # side by side, above the fold
    assert image["y"] + image["height"] <= 720


def test_what_it_is_unsure_of_is_said_as_by_the_predictor(visit: Visit, model: Predictor) -> None:
    seen = set()
    for seed in range(12):
        expected = model.predict(image(seed))
        visit.upload(image(seed))
        line = visit.page.inner_text(".labels")
        assert ("Unsure" in line) == expected.unsure
        assert ("Unlike" in line) == (expected.ood is not None and expected.ood >= 0.95)
        seen.add(expected.unsure)
    assert seen == {True, False}
    flat = encode(np.full((40, 40, 3), 200, np.uint8), "png")
    visit.upload(flat)
    assert model.predict(flat).doubts()[-1:] == ["unlike the training images"]
    assert "Unlike the images" in visit.page.inner_text(".labels")


@pytest.mark.parametrize("thresholds", [None, (0.9, 0.99, 0.01, 0.5, 0.5, 0.5, 0.5)])
def test_classes_are_ranked_as_by_the_predictor(
    visit: Visit, model: Predictor, thresholds: tuple[float, ...] | None
) -> None:
    script = """async ([logits, about]) => (await import("./rank.js")).rank(logits, about, 2)"""
    kinds: tuple[Activation, ...] = ("softmax", "sigmoid") if thresholds is None else ("sigmoid",)
    for row in torch.randn(20, 7, generator=torch.Generator().manual_seed(0)) * 4:
        for kind in kinds:
            about = {"classes": NAMES, "activation": kind, "thresholds": thresholds}
            found = visit.page.evaluate(script, [row.tolist(), about])
            (top,) = rank(row[None], NAMES, 2, activation=kind, thresholds=thresholds)
            for each, score in zip(found, top, strict=True):
                assert each == {
                    **score.to_dict(), "probability": pytest.approx(score.probability, rel=1e-9)
                }  # fmt: skip


def test_html_in_a_class_name_is_text(visit: Visit, model: Predictor) -> None:
    contents = (image(seed) for seed in range(40))
    labels = (
        (content, [each.label for each in model.predict(content).top]) for content in contents
    )
    visit.upload(next(content for content, names in labels if EVIL in names))
    assert EVIL in [label for label, _ in visit.shown()]
    assert visit.page.locator("img").count() == 0


def test_errors_are_said_and_the_next_image_works(visit: Visit) -> None:
    visit.upload(b"this is no image", "a.txt", done=False)
    visit.page.wait_for_selector("#error:has-text('not an image that the browser can read')")
    assert visit.shown() == []
    assert visit.page.locator("figure:visible").count() == 0
    visit.upload(image(3))
    assert visit.page.inner_text("#error") == ""
    assert len(visit.shown()) == 5


FITS: list[tuple[Fit, float, tuple[int, int], int]] = [
    ("crop", 0.9, (32, 32), 3),
    ("crop", 1.0, (24, 40), 1),
    ("small", 0.875, (32, 32), 3),
    ("stretch", 0.95, (40, 24), 3),
]
CASES = [
    Preprocess(
        size=size, mean=(0.5,) * channels, std=(0.5,) * channels, interpolation=way, fit=fit,
        crop=crop, antialias=soft,
    )
    for way in get_args(Interpolation)
    for soft in (True, False)
    for fit, crop, size, channels in FITS
]  # fmt: skip
SHAPES = [(97, 61), (20, 33), (32, 700), (45, 45)]


def test_pixels_are_those_of_vitrail(visit: Visit) -> None:
    """Resize in the browser to the bit, by every rule and at odd sizes."""
    script = """async ([pixels, height, width, preprocess]) => {
        const { fitPixels } = await import("./preprocess.js");
        const { fit } = await import("./geometry.js");
        const { before } = fit(height, width, preprocess);
        const channels = preprocess.mean.length;
        const cut = [];
        for (let row = 0; row < before.height; row += 1) {
            const from = ((before.top + row) * width + before.left) * channels;
            cut.push(...pixels.slice(from, from + before.width * channels));
        }
        return [...fitPixels(Uint8Array.from(cut), height, width, preprocess)];
    }"""
    for number, preprocess in enumerate(CASES):
        height, width = SHAPES[(number + number // 4) % len(SHAPES)]
        pixels = photo(height, width)[..., : preprocess.channels]
        given = [pixels.ravel().tolist(), height, width, to_dict(preprocess)]
        found = np.array(visit.page.evaluate(script, given))
        expected = eval_image(np.ascontiguousarray(pixels), preprocess).ravel().astype(int)
        ties = (
            preprocess.interpolation == "area" and not preprocess.antialias
        )  # are rounded otherwise
        assert np.abs(found - expected).max() <= int(ties), preprocess


def test_a_jpeg_is_seen_as_by_the_predictor(visit: Visit, model: Predictor) -> None:
    content = encode(photo(150, 211), "JPEG")
    visit.upload(content, "a.jpg")
    script = """() => {
        const seen = document.getElementById("seen");
        return [...seen.getContext("2d").getImageData(0, 0, seen.width, seen.height).data];
    }"""
    found = np.array(visit.page.evaluate(script)).reshape(32, 32, 4)[..., :3]
    expected = eval_image(content, PREPROCESS).astype(int)
    assert np.abs(found - expected).max() <= 2


@pytest.mark.parametrize(
    ("width", "scheme", "paper"), [(1280, "light", LIGHT), (360, "dark", DARK)]
)
def test_the_page_fits(browser: Any, address: str, width: int, scheme: str, paper: str) -> None:
    visit = Visit(browser, address, viewport={"width": width, "height": 800}, color_scheme=scheme)
    visit.upload(image(6), "n" * 120 + ".png")
    assert_fits(visit.page, width, paper, f"web-{width}-{scheme}")
    visit.context.close()
    assert visit.said == []


def test_the_page_is_for_everybody(tab: Tab, address: str, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(image(6))
    status = "document.querySelector('#status').textContent"
    tab.open(address)
    until(lambda: tab.evaluate(status) == "Ready.", 30)
    check(tab, "web-empty")
    tab.upload("#file", tmp_path / "a.png")
    until(lambda: tab.evaluate(status) == "Done.", 30)
    check(tab, "web")


def test_a_folder_that_is_not_whole_says_so(browser: Any, address: str, folder: Path) -> None:
    about = json.loads((folder / "model.json").read_text())
    about["bytes"]["model.onnx"] += 1
    context = browser.new_context()
    page = context.new_page()
    context.route("**/model.json", lambda route: route.fulfill(json=about))
    page.goto(address)
    page.wait_for_selector("#error:has-text('model.onnx is incomplete')")
    context.close()
