"""What several modules share: a server under attack, and each graph's ONNX model."""

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.export import ExportedProgram

from tests.deploy.serving import Server, attacked
from vitrail.deploy.backends import backends
from vitrail.deploy.exporting import onnx_file, writers
from vitrail.deploy.exporting.graph import ExportModule


@pytest.fixture(scope="session")
def attacked_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Run one server for what attacks it: whatever came before, it answers what comes next.

    What counts the server's threads and files begins with a server of its own.
    """
    with attacked(tmp_path_factory.mktemp("attacked")) as running:
        yield running


@pytest.fixture(scope="session")
def converted() -> dict[str, bytes]:
    """Keep ONNX models by what they were made of."""
    return {}


@pytest.fixture
def onnx_once(converted: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """Convert a graph with the same weights and metadata once for all tests: it takes seconds."""
    real = onnx_file.make_onnx

    def make_onnx(module: ExportModule, program: ExportedProgram, metadata: dict[str, str]) -> Any:
        made_of = hashlib.sha256(f"{program}{json.dumps(metadata)}".encode())
        for tensor in (*program.state_dict.values(), *program.constants.values()):
            if isinstance(tensor, torch.Tensor):
                made_of.update(tensor.detach().contiguous().numpy().tobytes())
        key = made_of.hexdigest()
        if key not in converted:
            converted[key] = real(module, program, metadata).SerializeToString()
        return pytest.importorskip("onnx").load_from_string(converted[key])

    for room in (backends, onnx_file, writers):
        monkeypatch.setattr(room, "make_onnx", make_onnx)
