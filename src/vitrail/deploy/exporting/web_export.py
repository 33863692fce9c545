"""A web page without a server: onnxruntime-web runs the model in the browser.

Its files come from the user's npm or from a folder, and their hashes are checked. The build is the
one that works on any static host: one thread, no special headers.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tarfile
import tempfile
import zlib
from importlib.resources import files
from pathlib import Path

from vitrail.config import InputError, to_dict
from vitrail.data.decoding.reading import PLAIN, Reading
from vitrail.files import temporary_folder
from vitrail.predictor import Predictor
from vitrail.text import to_json

PACKAGE, VERSION = "onnxruntime-web", "1.30.0"
RUNTIME = {
    "ort.wasm.bundle.min.mjs": (
        "onnxruntime.js",  # not .mjs, which some hosts don't serve as a script
        "11e64bd8ffe11bd1a2a2f0d6275fdfbbba7262f0b76b99b53d228a8a22ef3d90",
    ),
    "ort-wasm-simd-threaded.wasm": (
        "onnxruntime.wasm",
        "3398c10d07d229bd91b364548e130e0e51a8e5704b88c7c083ebbeb78842dee2",
    ),
}
"""The package's files that the page needs: their names in the page, and their SHA-256."""

SHARED = ("app.css", "icon.svg", "bars.js", "image_input.js", "model_words.js")
"""Files that the served page has too."""

_BROWSERS = Reading(levels=(0, 65535))
_TIMEOUT = 600  # seconds, for npm


def check_web(predictor: Predictor) -> None:
    """Refuse a model whose input a browser can't provide."""
    channels = predictor.preprocess.channels
    if channels not in (1, 3):
        raise InputError(
            f"the model takes {channels} channels, but a browser provides 3 (color) or 1 (gray)"
        )
    reading = predictor.preprocess.reading
    if reading is not None and reading not in (PLAIN, _BROWSERS):
        raise InputError(
            f"the model reads files with{str(reading).replace(',', ' ')}, but a browser reads "
            "16 bits in full and one page; serve it with vitrail serve, or train it on 8-bit copies"
        )


def write_page(predictor: Predictor, folder: Path, runtime: dict[str, bytes]) -> None:
    """Write all files of the page beside its model.onnx."""
    here = files("vitrail.deploy")
    content = dict(runtime)
    content |= {file.name: file.read_bytes() for file in here.joinpath("web_page").iterdir()}
    content |= {name: here.joinpath("page", name).read_bytes() for name in SHARED}
    content["base.css"] = files("vitrail.plotting").joinpath("base.css").read_bytes()
    classes = predictor.classes
    about = {
        "name": predictor.name.rstrip("/").replace(":", "/").rpartition("/")[2],
        "model": str(predictor.model.spec),
        "classes": None if classes is None else list(classes),
        "preprocess": to_dict(predictor.preprocess),
        "activation": predictor.activation,
        "thresholds": predictor.thresholds,
        "temperature": predictor.temperature,
        **_doubts(predictor),
        "bytes": {
            "model.onnx": (folder / "model.onnx").stat().st_size,
            "onnxruntime.wasm": len(runtime["onnxruntime.wasm"]),
        },
    }
    content["model.json"] = to_json(about).encode()
    for name, data in content.items():
        (folder / name).write_bytes(data)


def _doubts(predictor: Predictor) -> dict[str, object]:
    """Say when the page withholds an answer, and how far held-out images were; no infinities."""
    doubts = predictor.doubts
    found: dict[str, object] = {}
    if doubts.threshold is not None:
        found["answered_above"] = min(max(doubts.threshold, -1.0), 2.0)  # of a probability
    if doubts.held_out is not None:
        ranked = doubts.held_out.sort().values.tolist()
        found["held_out"] = [round(each, 6) for each in ranked]
    return found


def read_runtime(folder: Path | None) -> dict[str, bytes]:
    """Read onnxruntime-web's files from a folder or through npm, and check their hashes."""
    found = _fetch() if folder is None else _read(folder)
    checked: dict[str, bytes] = {}
    for name, (ours, digest) in RUNTIME.items():
        if hashlib.sha256(found[name]).hexdigest() != digest:
            where = f"npm's {PACKAGE}" if folder is None else folder
            raise InputError(
                f"{name} of {where} is not the file of {PACKAGE} {VERSION}: it is damaged or of "
                "another version"
            )
        checked[ours] = found[name]
    return checked


def _read(folder: Path) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for name in RUNTIME:
        paths = [folder / name, folder / "dist" / name]
        path = next((each for each in paths if each.is_file()), None)
        if path is None:
            text = f"--runtime {folder} has no {name}; expected the folder of {PACKAGE} {VERSION}"
            raise InputError(text)
        try:
            found[name] = path.read_bytes()
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}") from None
    return found


def _fetch() -> dict[str, bytes]:
    """Download the package with npm, and take our files out of it."""
    npm = shutil.which("npm")
    instead = f"or give a folder with {PACKAGE} {VERSION}: --runtime FOLDER"
    if npm is None:
        raise InputError(f"--to web needs npm to download {PACKAGE}: install npm, {instead}")
    with temporary_folder("vitrail-web-", Path(tempfile.gettempdir())) as folder:
        command = [npm, "pack", f"{PACKAGE}@{VERSION}", "--ignore-scripts"]
        try:
            done = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, timeout=_TIMEOUT, check=False
            )
            lines = [line for line in done.stderr.splitlines() if line.startswith("npm error")]
            reason = lines[0] if lines else f"exit code {done.returncode}"
        except (OSError, subprocess.TimeoutExpired) as error:
            reason = type(error).__name__
        packed = next(folder.glob("*.tgz"), None)
        if packed is None:
            raise InputError(
                f"npm could not download {PACKAGE}@{VERSION} ({reason}); fix npm, {instead}"
            )
        try:
            with tarfile.open(packed) as archive:
                return {name: _member(archive, f"package/dist/{name}") for name in RUNTIME}
        except (tarfile.TarError, zlib.error, EOFError, KeyError) as error:
            raise InputError(f"npm downloaded a damaged {PACKAGE}@{VERSION}: {error}") from None


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(name)
    if file is None:
        raise KeyError(f"{name} is not a file")
    return file.read()
