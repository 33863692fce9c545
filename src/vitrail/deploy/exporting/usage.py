"""How what an export wrote is used, as a command."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence
from pathlib import Path

_OPENED = {
    "onnx": "import onnxruntime; print(onnxruntime.InferenceSession({file}).get_inputs()[0])",
    "openvino": 'import openvino; print(openvino.Core().compile_model({file}, "CPU"))',
    "pt2": "import torch; print(torch.export.load({file}).module())",
    "pt2-aot": "import torch; print(torch._inductor.aoti_load_package({file}))",
    "executorch": "from executorch.runtime import Runtime; "
    "print(Runtime.get().load_program({file}).method_names)",
}
"""Python that opens the files of a format and prints what they are."""


def use_command(form: str, files: Sequence[Path]) -> str:
    """Give a line for the shell that opens what was written in a format."""
    if form == "web":
        folder = os.path.commonpath([file.parent for file in files])
        return f"python -m http.server --directory {shlex.quote(folder)}"
    file = next((file for file in files if file.suffix == ".xml"), files[0])
    return f"python -c {shlex.quote(_OPENED[form].format(file=json.dumps(os.fspath(file))))}"
