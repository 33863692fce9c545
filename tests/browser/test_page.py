"""The served page in a real browser: images in, answers out, and nothing else runs."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.fitting import assert_fits
from tests.deploy.serving import SMALL, Server, embed, image, save_model, started, until

for package in ("fastapi", "uvicorn", "httptools", "prometheus_client"):
    pytest.importorskip(package)

EVIL = "<img src=x onerror=alert(1)><script>alert(2)</script>"
CLASSES = (EVIL, "b" * 90, *"cdefg")
THRESHOLDS = (0.1, 0.9, 0.05, 0.3, 0.8, 0.2, 0.6)
DARK, LIGHT = "rgb(13, 17, 23)", "rgb(255, 255, 255)"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    place = tmp_path_factory.mktemp("page")
    save_model(place / "one", classes=CLASSES)
    save_model(place / "two", SMALL.replace("depth=2", "depth=3"), CLASSES)
    for seed in range(12):
        file = place / "photos" / (EVIL.replace("/", "") if seed % 2 else "ash") / f"{seed}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(image(seed))
    index = embed(place / "one", place / "photos", place / "index.safetensors")
    save_model(place / "bit", "BiT-R50x1@32,stages=1-1-1-1,width=32,classes=7", CLASSES)
    save_model(place / "several", classes=CLASSES, thresholds=THRESHOLDS)
    save_model(place / "strict", classes=CLASSES, thresholds=(1.0,) * 7)
    sources = [str(place / "one"), f"two & <b>={place / 'two'}"]
    sources += [str(place / name) for name in ("bit", "several", "strict")]
    sources += ["--index", str(index)]
    with started(place, *sources, "--workers", "1", "--queue", "4") as running:
        yield running


class Visit:
    """A page, and all that it said and asked for."""

    def __init__(self, browser: Any, server: Server, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("dialog", lambda dialog: self.said.append(dialog.message))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.address = f"http://127.0.0.1:{server.port}/"
        self.page.goto(self.address)
        self.page.wait_for_selector(".panel")

    def upload(self, data: bytes, name: str = "a.png", *, done: str = "Done.") -> None:
        file = {"name": name, "mimeType": "image/png", "buffer": data}
        self.page.set_input_files("#file", files=[file])
        if done:
            self.page.wait_for_selector(f'#status:text-is("{done}")')

    def choose_raw(self) -> Any:
        """Let the first panel show the attention of a layer; give the panel."""
        panel = self.page.locator(".panel").first
        with self.page.expect_response(lambda answer: "method=raw" in answer.url):
            panel.locator(".method").select_option("raw")
        self.page.wait_for_selector(".panel:first-child .patch:has-text('Point at a patch')")
        return panel

    def pixels(self, canvas: str = ".view") -> bytes:
        """Give what a canvas shows."""
        return self.page.locator(canvas).first.screenshot()


@pytest.fixture
def visit(browser: Any, server: Server) -> Iterator[Visit]:
    opened = Visit(browser, server)
    yield opened
    opened.context.close()
    assert opened.said == []
    assert all(url.startswith(opened.address) for url in opened.asked)


def test_an_image_is_classified_by_both_models(visit: Visit, server: Server) -> None:
    visit.upload(image(1), f"{EVIL}.png".replace("/", ""))
    page = visit.page
    expected = server.post("/predict", image(1))[2]["images"][0]["top"]
    shown = page.locator(".panel").first.locator(".bars li")
    assert shown.count() == 5
    for place, score in enumerate(expected):
        label, value = shown.nth(place).locator("span").all_inner_texts()
        assert label == score["label"]
        assert value == f"{100 * score['probability']:.1f} %"
    assert page.locator("h2").all_inner_texts() == ["one", "two & <b>"]
    assert page.inner_text("#name") == f"{EVIL}.png".replace("/", "")
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 1


def test_a_multi_label_models_labels_are_said(visit: Visit, server: Server) -> None:
    visit.page.locator(".panel").first.locator(".model").select_option("several")
    visit.upload(image(1))
    (found,) = server.post("/predict?model=several", image(1))[2]["images"]
    panel = visit.page.locator(".panel").first
    assert 1 <= len(found["labels"]) < len(found["top"])
    assert panel.locator(".labels").inner_text() == f"Labels: {' · '.join(found['labels'])}"
    below = panel.locator(".bars .below span:first-child").all_inner_texts()
    assert below == [each["label"] for each in found["top"] if not each["predicted"]]
    assert visit.page.locator(".panel").nth(1).locator(".labels").inner_text() == ""
    panel.locator(".model").select_option("strict")
    panel.locator(".labels:has-text('No class reaches its threshold.')").wait_for()
    panel.locator(".model").select_option("one")
    panel.locator(".bars li").nth(4).wait_for()
    assert panel.locator(".labels").inner_text() == ""


def test_similar_images_are_shown_where_there_is_an_index(visit: Visit, server: Server) -> None:
    visit.upload(image(4))
    page, (first, second) = visit.page, visit.page.locator(".panel").all()
    expected = server.post("/similar", image(4))[2]["images"][0]["similar"]
    assert expected[0]["similarity"] == 1
    shown = first.locator(".strip li")
    assert shown.count() == len(expected) == 8
    for place, each in enumerate(expected):
        label, value = shown.nth(place).locator("div").all_inner_texts()
        assert (label, value) == (each["label"], f"cosine {each['similarity']:.3f}")
        canvas = shown.nth(place).locator("canvas")
        assert canvas.get_attribute("aria-label") == f"an image of {each['label']}"
        assert canvas.evaluate("canvas => [canvas.width, canvas.height]") == [48, 40]
        blank = "canvas => canvas.getContext('2d').getImageData(9, 9, 1, 1).data[3]"
        assert canvas.evaluate(blank) == 255
    assert {EVIL.replace("/", ""), "ash"} == {each["label"] for each in expected}
    assert page.locator("img").count() == 0
    assert second.locator(".similar").is_hidden()
    first.locator(".strip").focus()  # so that arrow keys move it
    assert page.evaluate("document.activeElement.className") == "strip"
    first.locator(".model").select_option("two & <b>")
    page.wait_for_selector('.panel:first-child h2:text-is("two & <b>")')
    assert first.locator(".similar").is_hidden()
    assert first.locator(".strip li").count() == 0


def test_a_similar_image_that_is_gone_is_said_to_be(visit: Visit, server: Server) -> None:
    photos = server.log.parent / "photos"
    photos.rename(photos.with_name("elsewhere"))
    try:
        visit.upload(image(4))
    finally:
        photos.with_name("elsewhere").rename(photos)
    canvas = visit.page.locator(".strip canvas").first
    assert (canvas.get_attribute("aria-label") or "").endswith(
        ", which can't be shown: this image is gone"
    )
    assert visit.page.inner_text("#error") == ""
    visit.said.clear()  # the browser itself reports answers of 404


def test_another_model_leaves_nothing_of_the_last(visit: Visit) -> None:
    """A model without attention after one with it; its distances and view are not drawn again."""
    visit.upload(image(2))
    page, panel = visit.page, visit.page.locator(".panel").first
    panel.locator(".model").select_option("bit")
    panel.locator(".bars li").first.wait_for()
    page.set_viewport_size({"width": 900, "height": 700})  # draws all panels anew
    assert panel.locator(".attention").is_hidden()
    with page.expect_response(lambda answer: "attention" in answer.url):
        panel.locator(".model").select_option("one")
    panel.locator(".attention").wait_for(state="visible")
    page.set_viewport_size({"width": 1000, "height": 700})
    assert panel.locator(".layer-value").inner_text() == "2 of 2"


def test_hovering_while_loading(visit: Visit) -> None:
    visit.upload(image(2))
    panel = visit.page.locator(".panel").first
    panel.locator(".view").hover(position={"x": 10, "y": 10})
    box = panel.locator(".view").bounding_box()
    held: list[Any] = []
    visit.page.route("**/predict*", lambda route: held.append(route))
    visit.upload(image(3), done="")
    until(lambda: visit.page.evaluate("1") and len(held) == 2)
    visit.page.mouse.move(box["x"] + 30, box["y"] + 30)
    visit.page.evaluate(
        "document.querySelector('.view').dispatchEvent(new PointerEvent('pointermove'))"
    )
    for route in held:
        route.continue_()
    visit.page.wait_for_selector('#status:text-is("Done.")')


def test_an_image_that_comes_before_the_models_is_shown(browser: Any, server: Server) -> None:
    context = browser.new_context()
    page, held = context.new_page(), list[Any]()
    page.route("**/models", lambda route: held.append(route))
    page.goto(f"http://127.0.0.1:{server.port}/")
    until(lambda: page.evaluate("1") and held)
    file = {"name": "early.png", "mimeType": "image/png", "buffer": image(1)}
    page.set_input_files("#file", files=[file])
    held[0].continue_()
    page.wait_for_selector('#status:text-is("Done.")')
    assert page.locator(".panel").first.locator(".bars li").count() == 5
    assert page.inner_text("#name") == "early.png"
    context.close()


def test_a_finger_chooses_a_patch_and_lets_go_of_it(browser: Any, server: Server) -> None:
    visit = Visit(browser, server, has_touch=True, viewport={"width": 360, "height": 800})
    visit.upload(image(2))
    panel = visit.choose_raw()
    panel.locator(".view").tap(position={"x": 10, "y": 10})
    assert panel.locator(".patch").inner_text().startswith("The patch at row 1, column 1 attends")
    panel.locator(".view").tap(position={"x": 10, "y": 10})
    assert panel.locator(".patch").inner_text().startswith("The brightest patch")
    visit.context.close()
    assert visit.said == []


def test_html_in_a_class_name_is_text(visit: Visit, server: Server) -> None:
    def shown(seed: int) -> list[str]:
        top = server.post("/predict", image(seed))[2]["images"][0]["top"]
        return [score["label"] for score in top]

    visit.upload(image(next(seed for seed in range(40) if EVIL in shown(seed))))
    assert EVIL in visit.page.locator(".bars li span").all_inner_texts()
    assert visit.page.locator("img").count() == 0


def test_sliders_and_hovering_change_what_is_seen(visit: Visit) -> None:
    visit.upload(image(2))
    assert visit.page.locator(".panel").first.locator(".method").input_value() == "rollout"
    page, panel = visit.page, visit.choose_raw()
    seen = [visit.pixels()]
    assert panel.locator(".layer-value").inner_text() == "2 of 2"
    panel.locator(".layer").focus()
    with page.expect_response(lambda answer: "layer=0" in answer.url) as found:
        page.keyboard.press("ArrowLeft")
    assert "weights" in found.value.json()["images"][0]
    page.wait_for_selector('.panel:first-child .layer-value:text-is("1 of 2")')
    seen.append(visit.pixels())
    panel.locator(".head").focus()
    with page.expect_response(lambda answer: "head=0" in answer.url):
        page.keyboard.press("ArrowRight")
    page.wait_for_selector('.panel:first-child .head-value:text-is("1 of 2")')
    seen.append(visit.pixels())
    panel.locator(".view").hover(position={"x": 10, "y": 10})
    assert panel.locator(".patch").inner_text().startswith("The patch at row 1, column 1 attends")
    seen.append(visit.pixels())
    page.mouse.move(0, 0)
    assert "Point at a patch" in panel.locator(".patch").inner_text()
    panel.locator(".view").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert panel.locator(".patch").inner_text().startswith("The patch at row 3, column 4 attends")
    page.keyboard.press("Escape")
    panel.locator(".grid").uncheck()
    seen.append(visit.pixels())
    panel.locator(".method").select_option("rollout")  # which was shown before
    panel.locator(".layer").wait_for(state="hidden")
    until(lambda: visit.pixels() != seen[-1], 10)
    seen.append(visit.pixels())
    assert len(set(seen)) == len(seen)
    assert "pixels in the first layer" in panel.locator("figcaption").inner_text()


@pytest.mark.parametrize("size", [(1280, 800), (390, 844)], ids=["desktop", "phone"])
def test_image_and_answer_are_above_the_fold(
    browser: Any, server: Server, size: tuple[int, int]
) -> None:
    visit = Visit(browser, server, viewport={"width": size[0], "height": size[1]})
    visit.upload(image(1))
    visit.page.wait_for_selector(".panel:first-child .photo:visible")
    panel = visit.page.locator(".panel").first
    for part in (panel.locator(".whole"), panel.locator(".bars li").first):
        box = part.bounding_box()
        assert 0 <= box["y"] < box["y"] + box["height"] <= size[1]
        assert 0 <= box["x"] < box["x"] + box["width"] <= size[0]
    visit.context.close()
    assert visit.said == []


def test_several_images_are_named_and_shown_when_chosen(visit: Visit, server: Server) -> None:
    kind = "image/png"
    files = [{"name": f"{n}.png", "mimeType": kind, "buffer": image(n)} for n in (1, 2, 3)]
    visit.page.set_input_files("#file", files=files)
    rows = visit.page.locator("#files li")
    for place, seed in enumerate((1, 2, 3)):
        best = server.post("/predict", image(seed))[2]["images"][0]["top"][0]
        said = f"{best['label']} {100 * best['probability']:.1f}\u00a0%"
        until(lambda place=place: rows.nth(place).locator("span").inner_text() != "", 20)
        assert rows.nth(place).locator("span").inner_text() == said
    rows.nth(2).locator("button").click()
    visit.page.wait_for_selector('#name:text-is("3.png")')
    assert rows.nth(2).get_attribute("aria-current") == "true"
    visit.page.wait_for_selector('#status:text-is("Done.")')
    visit.upload(image(1))
    assert visit.page.locator("#files").is_hidden()


def test_errors_are_said_and_the_next_image_works(visit: Visit) -> None:
    visit.upload(b"this is no image", done="")
    visit.page.wait_for_selector('#error:text-is("not an image but text")')
    assert visit.page.locator(".attention:visible").count() == 0
    visit.upload(image(3))
    assert visit.page.inner_text("#error") == ""
    visit.said.clear()  # the browser itself reports answers of 422


def test_a_dropped_and_a_pasted_image(visit: Visit) -> None:
    for kind, part in (("drop", "dataTransfer"), ("paste", "clipboardData")):
        visit.page.evaluate(
            """([kind, part, bytes]) => {
                const data = new DataTransfer();
                const options = {type: "image/png"};
                data.items.add(new File([new Uint8Array(bytes)], kind + ".png", options));
                const event = new Event(kind, {bubbles: true, cancelable: true});
                Object.defineProperty(event, part, {value: data});
                document.body.dispatchEvent(event);
            }""",
            [kind, part, list(image(4))],
        )
        visit.page.wait_for_selector(f'#name:text-is("{kind}.png")')
        visit.page.wait_for_selector('#status:text-is("Done.")')


def test_a_busy_server_is_asked_again(visit: Visit, server: Server) -> None:
    worker = server.workers()[0]
    os.kill(worker, signal.SIGSTOP)
    clients = []
    try:
        for seed in range(6):  # one is with the worker, four wait, and there is no more room
            data = image(seed)
            head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
            clients.append(server.raw(head % len(data) + data))
            time.sleep(0.1)
        visit.upload(image(5), done="")
        visit.page.wait_for_selector("#status:has-text('The server is busy; trying again in')")
    finally:
        os.kill(worker, signal.SIGCONT)
        for client in clients:
            client.close()
    visit.page.wait_for_selector('#status:text-is("Done.")')
    assert visit.page.inner_text("#error") == ""
    visit.said.clear()  # the browser itself reports answers of 503


@pytest.mark.parametrize(
    ("width", "scheme", "paper"), [(1280, "light", LIGHT), (360, "dark", DARK)]
)
def test_the_page_fits(browser: Any, server: Server, width: int, scheme: str, paper: str) -> None:
    size = {"width": width, "height": 800}
    visit = Visit(browser, server, viewport=size, color_scheme=scheme)
    visit.upload(image(6), "n" * 120 + ".png")
    assert_fits(visit.page, width, paper, f"{width}-{scheme}")
    visit.context.close()
    assert visit.said == []


def test_a_key_is_asked_for(browser: Any, tmp_path: Path) -> None:
    save_model(tmp_path / "one")
    key = tmp_path / "key"
    key.write_text("correct-horse-battery")
    options = ["--workers", "1", "--api-key-file", str(key)]
    with started(tmp_path, str(tmp_path / "one"), *options) as server:
        context = browser.new_context()
        page = context.new_page()
        page.goto(f"http://127.0.0.1:{server.port}/")
        page.wait_for_selector("#unlock:visible")
        page.fill("#key", "correct-horse-battery")
        page.keyboard.press("Enter")
        page.wait_for_selector(".panel")
        assert json.dumps(page.context.cookies()) == "[]"
        context.close()
