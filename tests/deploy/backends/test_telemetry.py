"""The engines send nothing and leave no files: no socket, no DNS, an empty HOME."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.serving import image, save_model

for package in ("onnx", "onnxscript", "onnxruntime", "openvino"):
    pytest.importorskip(package)

SCRIPT = """
import sys

def refuse(event, args):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"):
        raise SystemExit(f"{event} {args}")

sys.addaudithook(refuse)
import vitrail

model, out, images = sys.argv[1:]
vitrail.export(model, f"{out}/openvino", to="openvino")
vitrail.predict(model, images, backend="onnxruntime")
vitrail.bench(model, backends=("openvino", "int8"), images=2, rounds=1)
"""


@pytest.mark.slow
def test_engines_send_nothing(tmp_path: Path) -> None:
    save_model(tmp_path / "model")
    (tmp_path / "home").mkdir()
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.png").write_bytes(image(0))
    places = [str(tmp_path / name) for name in ("model", "", "images")]
    trace = tmp_path / "trace"
    watch = ["strace", "-f", "--seccomp-bpf", "-qq", "-e", "trace=socket", "-o", str(trace)]
    environment = {
        **{name: text for name, text in os.environ.items() if name != "CI"},
        "HOME": str(tmp_path / "home"),
        "VITRAIL_CACHE": str(tmp_path / "cache"),
    }
    environment.pop("XDG_CACHE_HOME", None)
    subprocess.run(
        [*(watch if shutil.which("strace") else []), sys.executable, "-c", SCRIPT, *places],
        env=environment, check=True, capture_output=True, text=True,
    )  # fmt: skip
    left = [path for path in (tmp_path / "home").rglob("*") if path.is_file()]
    assert left == []
    if trace.exists():
        assert "AF_INET" not in trace.read_text()
