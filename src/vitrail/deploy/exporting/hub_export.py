"""A model as a folder for the Hugging Face hub: weights, config, and a model card."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from vitrail.config import InputError
from vitrail.files import write_whole
from vitrail.training.checkpoints.default_folder import data_name
from vitrail.training.checkpoints.run_folder import RESULT, find_run, read_result
from vitrail.training.run_data import read_config
from vitrail.weights.checkpoint import Checkpoint
from vitrail.weights.conversion.convert import ConversionResult, convert
from vitrail.weights.license import find_license
from vitrail.weights.load import read_checkpoint
from vitrail.weights.loaded import AnyModel, as_checkpoint
from vitrail.weights.sources.remote_sources import hub_repository
from vitrail.weights.sources.resolve import resolve

CARD = "README.md"
_FORMATS = {"hf": "transformers", "timm": "timm", "vitrail": "vitrail"}
"""Formats that the hub knows, the first that can hold a model is taken; and their libraries."""
_REPOSITORY = r"[\w-][\w.-]*/[\w-][\w.-]*"


def write_hub(
    model: AnyModel, out: Path, repository: str | None = None
) -> tuple[ConversionResult, str | None]:
    """Write a model and its card; the format is the first of transformers', timm's and ours.

    The card's example names the `repository`, or what stands for it. Also returns how images have
    to be read before, where the format can't say that.
    """
    if out.exists():
        raise InputError(f"{out} exists; remove it or choose another name")
    text = isinstance(model, str | os.PathLike)
    checkpoint = read_checkpoint(os.fspath(model)) if text else as_checkpoint(model)
    written = _convert_first(model, out)
    card = make_card(checkpoint, out.resolve().name, written.format, find_run(model), repository)
    write_whole(out / CARD, card)
    files = tuple(sorted(path for path in out.rglob("*") if path.is_file()))
    result = ConversionResult(
        written.format, files, written.max_difference, written.compared_with, written.lost
    )
    return result, _explain_reading(checkpoint, written.format)


def check_repository(name: str) -> None:
    """Refuse what can't be pushed to, before any work."""
    if not re.fullmatch(_REPOSITORY, name, re.ASCII):
        raise InputError(f"--push {name}: expected ORG/NAME, such as me/my-photos")
    try:
        import huggingface_hub  # noqa: F401
    except ImportError:
        raise InputError("--push needs another package: pip install 'vitrail[hub]'") from None


def push_folder(folder: Path, repository: str) -> str:
    """Upload a folder to the hub; give its address. The user is logged in by `hf auth login`."""
    import huggingface_hub as hub

    try:
        api = hub.HfApi()
        api.create_repo(repository, exist_ok=True)
        api.upload_folder(repo_id=repository, folder_path=folder)
    except Exception as error:  # whatever its HTTP library raises, which changes with versions
        said = (str(error) or type(error).__name__).splitlines()[0]
        raise InputError(
            f"{folder} is written, but can't be pushed to {repository}: {said}; log in with "
            f"'hf auth login', then 'hf upload {repository} {folder}'"
        ) from None
    return f"https://huggingface.co/{repository}"


def _convert_first(model: AnyModel, out: Path) -> ConversionResult:
    refused = InputError("no format")
    for to in _FORMATS:
        try:
            return convert(model, out, to)
        except InputError as error:
            refused = error
    raise refused


def make_card(
    checkpoint: Checkpoint, name: str, written: str, run: Path | None, repository: str | None = None
) -> str:
    """Write a model card: front matter for the hub, then what a person asks first."""
    config, result = None, {}
    if run is not None and (run / RESULT).exists():
        config, result = read_config(run), read_result(run / RESULT)
    base = checkpoint.provenance.source if checkpoint.provenance else ""
    front: dict[str, Any] = {
        "library_name": _FORMATS[written],
        "pipeline_tag": "image-classification"
        if checkpoint.classes
        else "image-feature-extraction",
        "tags": ["vision-transformer", "vitrail"],
    }
    numbers = checkpoint.activation == "none"
    if numbers:  # for which the hub has no task
        del front["pipeline_tag"]
        front["tags"].append("image-regression")
    license = _license_of(base)
    front["license"] = license.lower() if license else "other"
    if hub := hub_repository(base):
        front["base_model"] = hub[0]
    if result.get("top1") is not None and config is not None:
        metric = {"type": "accuracy", "value": round(result["top1"], 4)}
        front["model-index"] = [
            {
                "name": name,
                "results": [
                    {
                        "task": {"type": "image-classification"},
                        "dataset": {"name": data_name(config.data), "type": "imagefolder"},
                        "metrics": [metric],
                    }
                ],
            }
        ]
    lines = [f"# {name}", "", _describe(checkpoint, base, result, config and config.data)]
    if checkpoint.classes:
        shown = ", ".join(checkpoint.classes[:50])
        more = f" and {len(checkpoint.classes) - 50:,} more" if len(checkpoint.classes) > 50 else ""
        lines += ["", "## Targets" if numbers else "## Classes", "", f"{shown}{more}"]
    used = _usage(repository or f"ORG/{name}", written, numbers=numbers)
    lines += ["", "## Use", "", "```python", *used, "```", ""]
    if reading := _explain_reading(checkpoint, written):
        lines += [f"Before that, {reading}: as the images were read that it was trained on.", ""]
    if not license:
        lines += ["The license of the weights it began with is not known; see there.", ""]
    head = yaml.safe_dump(front, sort_keys=False, allow_unicode=True)
    return f"---\n{head}---\n" + "\n".join(lines)


def _explain_reading(checkpoint: Checkpoint, written: str) -> str | None:
    reading = checkpoint.preprocess and checkpoint.preprocess.reading
    return reading.explain() if reading and written != "vitrail" else None


def _license_of(base: str) -> str | None:
    if not base or base.startswith(("run:", "object:")):
        return None
    with suppress(InputError, OSError):
        return find_license(resolve(base))
    return None


def _describe(checkpoint: Checkpoint, base: str, result: dict[str, Any], data: str | None) -> str:
    spec = checkpoint.spec
    height, width = spec.image
    said = f"{spec.name.partition(',')[0]}, images of {width} x {height} pixels"
    what = "numbers predicted" if checkpoint.activation == "none" else "classes"
    said += f", {len(checkpoint.classes):,} {what}." if checkpoint.classes else "."
    if data:
        # Of what is on this machine, only its name.
        known = Path(base).name if base.startswith(("file:", "run:")) else base
        start = f", from {known}" if base else ""
        said += f" Trained with vitrail on {data_name(data)}{start}."
    if result.get("top1") is not None:
        said += f" Top-1 accuracy {result['top1']:.2%}"
        if interval := result.get("top1_interval"):
            said += f" (95 % interval {interval[0]:.1%} to {interval[1]:.1%})"
        said += f" on {result['images']:,} validation images."
    if result.get("r2") is not None:
        said += f" R2 {result['r2']:.3f}, mean absolute error {result['mae']:.4g}"
        said += f" on {result['images']:,} validation images."
    return said


def _usage(repository: str, written: str, *, numbers: bool) -> list[str]:
    if written == "hf":
        more = ', function_to_apply="none"' if numbers else ""
        return [
            "from transformers import pipeline",
            "",
            f'pipeline("image-classification", "{repository}")("cat.jpg"{more})',
        ]
    if written == "timm":
        return ["import timm", "", f'timm.create_model("hf-hub:{repository}", pretrained=True)']
    return ["import vitrail", "", f'vitrail.predict("hf:{repository}", ["cat.jpg"])']
