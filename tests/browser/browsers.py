"""Chromium and Firefox behind one small set of words, so that one test tries both.

Playwright brings its own Firefox, which can't be had everywhere. Debian's is asked over WebDriver
BiDi, a WebSocket that it listens on itself.
"""

from __future__ import annotations

import itertools
import json
import subprocess
from base64 import b64decode
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

from tests.deploy.serving import until

_KEYS = {"Tab": "\ue004", "ArrowLeft": "\ue012", "ArrowRight": "\ue014", "Home": "\ue011"}


class Tab(Protocol):
    """A page in a browser, and all that it said."""

    width: int
    said: list[str]

    def open(self, address: str) -> None:
        """Load a page, and wait until it is there."""
        ...

    def evaluate(self, code: str) -> Any:
        """Give the value of a JavaScript expression, which may be a promise."""
        ...

    def press(self, key: str) -> None:
        """Press a key."""
        ...

    def upload(self, selector: str, file: Path) -> None:
        """Choose a file in an input."""
        ...

    def screenshot(self, path: Path) -> None:
        """Save what is seen."""
        ...


class ChromiumTab:
    """A page of Chromium, by Playwright."""

    def __init__(self, browser: Any, width: int, *, dark: bool) -> None:
        self.width, self.said = width, list[str]()
        scheme = "dark" if dark else "light"
        context = browser.new_context(
            viewport={"width": width, "height": 800}, color_scheme=scheme, bypass_csp=True
        )
        self.page = context.new_page()
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))

    def open(self, address: str) -> None:
        """Load a page, and wait until it is there."""
        self.page.goto(address)

    def evaluate(self, code: str) -> Any:
        """Give the value of a JavaScript expression, which may be a promise."""
        return self.page.evaluate(code)

    def press(self, key: str) -> None:
        """Press a key."""
        self.page.keyboard.press(key)

    def upload(self, selector: str, file: Path) -> None:
        """Choose a file in an input."""
        self.page.set_input_files(selector, file)

    def screenshot(self, path: Path) -> None:
        """Save what is seen."""
        self.page.screenshot(path=path)

    def close(self) -> None:
        """Close the page."""
        self.page.context.close()


class FirefoxTab:
    """A Firefox of its own, without a window, by WebDriver BiDi."""

    def __init__(self, program: str, profile: Path, width: int, *, dark: bool) -> None:
        from websockets.sync.client import connect

        self.width, self.said, self.numbers = width, list[str](), itertools.count()
        settings = {
            "layout.css.prefers-color-scheme.content-override": 0 if dark else 1,
            "services.settings.server": "data:,",  # nothing is asked of Mozilla
            "app.normandy.enabled": False,
        }
        lines = (f"user_pref({json.dumps(k)}, {json.dumps(v)});" for k, v in settings.items())
        (profile / "user.js").write_text("\n".join(lines))
        words = [program, "--headless", "--no-remote", "--remote-debugging-port", "0"]
        self.process = subprocess.Popen(
            [*words, "--profile", str(profile)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        with ExitStack() as opened:  # closed here only if something fails
            opened.callback(self.end)
            said = profile / "WebDriverBiDiServer.json"
            until(lambda: said.exists() and said.read_text(), 60)
            address = f"ws://127.0.0.1:{json.loads(said.read_text())['ws_port']}/session"
            self.socket = opened.enter_context(connect(address, max_size=None, proxy=None))
            self.call("session.new", capabilities={})
            self.call("session.subscribe", events=["log.entryAdded"])
            tree = self.call("browsingContext.getTree")
            self.context: str = tree["contexts"][0]["context"]
            size = {"width": width, "height": 800}
            self.call("browsingContext.setViewport", context=self.context, viewport=size)
            self.close = opened.pop_all().close

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command, and keep what the page says until it is answered."""
        number = next(self.numbers)
        self.socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            found = json.loads(self.socket.recv(timeout=60))
            if found.get("method") == "log.entryAdded":
                self.said.append(found["params"]["text"])
            if found.get("id") == number:
                assert found["type"] == "success", found
                return found["result"]

    def open(self, address: str) -> None:
        """Load a page, and wait until it is there."""
        self.call("browsingContext.navigate", context=self.context, url=address, wait="complete")

    def evaluate(self, code: str) -> Any:
        """Give the value of a JavaScript expression, which may be a promise."""
        found = self._evaluate(f"(async () => JSON.stringify(await ({code})))()")
        assert found["type"] == "success", found
        value = found["result"].get("value")
        return None if value is None else json.loads(value)

    def _evaluate(self, code: str) -> dict[str, Any]:
        target = {"context": self.context}
        return self.call("script.evaluate", expression=code, target=target, awaitPromise=True)

    def press(self, key: str) -> None:
        """Press a key."""
        value = _KEYS[key]
        keys = [{"type": "keyDown", "value": value}, {"type": "keyUp", "value": value}]
        actions = [{"type": "key", "id": "keyboard", "actions": keys}]
        self.call("input.performActions", context=self.context, actions=actions)

    def upload(self, selector: str, file: Path) -> None:
        """Choose a file in an input."""
        found = self._evaluate(f"document.querySelector({selector!r})")["result"]
        element = {"sharedId": found["sharedId"]}
        self.call("input.setFiles", context=self.context, element=element, files=[str(file)])

    def screenshot(self, path: Path) -> None:
        """Save what is seen."""
        found = self.call("browsingContext.captureScreenshot", context=self.context)
        path.write_bytes(b64decode(found["data"]))

    def end(self) -> None:
        """End the browser."""
        self.process.terminate()
        self.process.wait(20)
