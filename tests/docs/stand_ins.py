"""What the pages name, made tiny: images, a run, weights; and how a block is adapted to it."""

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from tests.deploy.serving import save_model
from vitrail.cli import main

TINY = "ViT/8@64,depth=2,width=24,heads=2,mlp=48"
CLASSES = ("cat", "dog", "hen")

SUBSTITUTES = [
    (r"(timm|google|hf|dinov2):[\w./+-]+", "weights"),
    (r"(pets|cifar10|imagenet):DIR", "photos/"),
    (r"\bcifar10\b", "digits"),
    (r"\b5%", "80%"),  # an error rate that three held-out images can show
]
"""What stands for what can't be downloaded here, in commands and in Python."""

IN_PYTHON = [
    (
        r"ViT-B/16",
        "ViT-B/16,width=48,mlp=96",
    ),  # its depth, heads and tokens, a fraction of its time
    (r"\b768\b", "48"),
    (r"classes=37", "classes=3"),  # those of photos/
    (r"batch=512", "batch=8"),
    (r"range\(1000\)", "range(2)"),
    (r"workers=8", "workers=1"),
    (r"steps=500", "steps=2"),
    (r"ViT-S/16", TINY),
    (r"zeros\(\(1, 3, 224, 224\)", "zeros((1, 3, 64, 64)"),  # what the tiny model takes
]
IN_COMMANDS = [
    (r"^ViT-[SBL]/16$", TINY),
    (r"depth=3,width=256,heads=4,mlp=512", "depth=1,width=24,heads=2,mlp=48"),
]

SHORT = {
    "train": ["--steps", "2", "--batch", "8", "--loader.workers", "0", "--device", "cpu"],
    "vtab": ["--steps", "1", "--batch", "4", "--image", "32", "--images", "12"],
    "sweep": ["--parallel", "1"],
    "inspect": ["--count", "2"],
    "bench": ["--images", "4", "--rounds", "1"],
}
SHORT["bench"] += ["--backends", "pytorch", "onnxruntime", "merged", "int8"]
MAE = ["--mim.decoder.depth", "1", "--mim.decoder.width", "32", "--mim.decoder.heads", "2"]
SHORT["finetune"] = SHORT["train"]
"""Arguments that make a command's work small."""


def make_world(folder: Path) -> None:
    """Make what the pages name: photos, single images, weights, and a finished run."""
    rng = np.random.default_rng(0)
    for number in range(36):
        name = CLASSES[number % 3]
        save_image(rng, folder / "photos" / name / f"{number:02}.jpg", number % 3)
    rows = [f"photos/{CLASSES[n % 3]}/{n:02}.jpg,{n},{n % 5}" for n in range(36)]
    (folder / "ages.csv").write_text("\n".join(["path,age,weight", *rows]) + "\n")
    for number, place in enumerate(
        ["cat.jpg", "dog.jpg", "dog.png", "new/1.jpg", "holiday/1.jpg", "images/cat/1.jpg"]
    ):
        save_image(rng, folder / place, number % 3)
    for split, count in (("train", 12), ("test", 6)):
        for number in range(count):
            label = CLASSES[number % 3]
            save_image(rng, folder / "vtab" / "dtd" / split / label / f"{number}.jpg", number % 3)
    save_model(folder / "weights", f"{TINY},classes=5", tuple("vwxyz"))
    run = ["train", str(folder / "photos"), "--model", TINY, "--out", str(folder / "runs/photos")]
    main([*run, *SHORT["train"]])
    for name in ("small", "large", "other", "masked"):
        shutil.copytree(folder / "runs/photos", folder / "runs" / name)


def save_image(rng: np.random.Generator, path: Path, label: int) -> None:
    """Write noise in the color of a class."""
    pixels = rng.integers(0, 100, (40, 48, 3), dtype=np.uint8)
    pixels[..., label] += 100
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def adapt_python(code: str) -> str:
    """Put the stand-ins into Python code."""
    for pattern, substitute in [*SUBSTITUTES, *IN_PYTHON]:
        code = re.sub(pattern, substitute, code)
    return code


def adapt_command(words: Sequence[str]) -> list[str]:
    """Put the stand-ins into the words of a command, and cut its work short."""
    if words[0] in ("models", "describe"):  # they build nothing
        return list(words)
    adapted = []
    for word in words:
        for pattern, substitute in [*SUBSTITUTES, *IN_COMMANDS]:
            word = re.sub(pattern, substitute, word)
        adapted.append(word)
    if "--aot" in adapted:  # compiles for half a minute
        adapted.remove("--aot")
    if "--minutes" in adapted:  # whose probes are tested in tests/test_run_defaults.py
        place = adapted.index("--minutes")
        del adapted[place : place + 2]
    whole = words[:2] == ["sweep", "show"] or "--more" in words  # which has the run's settings
    short = [] if whole else SHORT.get(words[0], [])
    return [*adapted, *short, *(MAE if "mae" in words else [])]
