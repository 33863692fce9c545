"""The command `vitrail`: one sub-command, one function, which imports its room when it runs.

Results go to stdout, progress and errors to stderr; exit codes are 0 (done), 2 (the user's input,
one line) and 1 (anything else).
"""

from __future__ import annotations

import functools
import io
import itertools
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import tyro

from vitrail import __version__
from vitrail.config import InputError, suggest
from vitrail.console import new_table, print_cost, print_json, print_line, print_table

Json = Annotated[bool, tyro.conf.arg(help="Print JSON instead of a table.")]


def models(*, json: Json = False) -> None:
    """List the models of the paper and its successors.

    The grammar knows many more: any patch size (ViT-B/14), resolution (ViT-B/16@384), option
    (ViT-B/16,pool=gap) and shape (ViT/32,depth=8,width=1024,heads=16,mlp=2048).

    Example: vitrail models
    """
    from vitrail.models import NAMES, parse
    from vitrail.models.cost import cost_of

    costs = [cost_of(parse(name)) for name in NAMES]
    if json:
        keys = ("name", "parameters", "macs", "tokens")
        print_json([{key: getattr(cost, key) for key in keys} for cost in costs])
        return
    table = new_table("model", "parameters", "GMACs", "tokens")
    for cost in costs:
        row = (f"{cost.parameters:,}", f"{cost.macs / 1e9:.3f}", str(cost.tokens))
        table.add_row(cost.name, *row)
    print_table(table)


def describe(
    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME")],
    *,
    classes: int | None = None,
    image: Annotated[str | None, tyro.conf.arg(metavar="HxW")] = None,
    batch: int = 1,
    json: Json = False,
) -> None:
    """Show a model's layers and what it costs, without building it.

    Example: vitrail describe ViT-B/16 --image 384x384 --batch 32

    Args:
        name: A model's name, such as ViT-B/16, R50+ViT-L/32@384 or BiT-R152x4.
        classes: Outputs of the head; the name's own (1000) unless given.
        image: The pictures' size, 384 or 384x512; the name's own unless given.
        batch: Pictures in a training step, for the memory.
    """
    from dataclasses import replace

    from vitrail.models.cost import cost_of
    from vitrail.models.names import parse, parse_size

    if batch < 1:
        raise InputError(f"--batch is at least 1, not {batch}")
    spec = parse(name)
    spec = spec if classes is None else replace(spec, classes=classes)
    cost = cost_of(spec, image=parse_size(image) if image else None, batch=batch)
    if json:
        print_json(asdict(cost))
    else:
        print_cost(cost)


def demo(*, json: Json = False) -> None:
    """Build a small model of each family and run it on a drawn picture.

    Example: vitrail demo
    """
    from vitrail.demo import run

    rows = run()
    if json:
        print_json(rows)
        return
    table = new_table("model", "parameters", "tokens", "features", "logits", "ms a picture")
    for row in rows:
        table.add_row(row["name"], *(str(row[key]) for key in list(row)[1:]))
    print_table(table)


def convert(
    source: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="SOURCE")],
    out: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="OUT")],
    *,
    to: str,
    model: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None,
    json: Json = False,
) -> None:
    """Write published weights in another project's format, and check the logits.

    Example: vitrail convert timm:vit_base_patch16_224.augreg_in21k B_16.npz --to npz

    Args:
        source: Weights: timm:…, hf:…, google:…, file:…, or a path.
        out: The file (npz, bigvision, torchvision) or folder (timm, hf, vitrail) to write.
        to: vitrail, npz, bigvision, timm, hf or torchvision.
        model: What the source holds, where its shapes alone don't say.
    """
    from vitrail.weights.write import convert as write

    written = write(source, out, to, model=model)
    if json:
        print_json({**asdict(written), "files": [str(file) for file in written.files]})
        return
    for file in written.files:
        print_line(str(file))
    print_line(f"{written.format}: logits differ from the source's by {written.max_difference:.1e}")


def weights_show(
    source: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="SOURCE")],
    *,
    model: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None,
    json: Json = False,
) -> None:
    """Show what weights hold: format, model, classes, preprocessing, hash.

    Example: vitrail weights show timm:vit_tiny_patch16_224.augreg_in21k_ft_in1k

    Args:
        source: Weights: timm:…, hf:…, google:…, file:…, or a path.
        model: What the source holds, where its shapes alone don't say.
    """
    from vitrail.weights.load import show

    shown = show(source, model=model)
    if json:
        print_json(shown)
        return
    for key, value in shown.items():
        print_line(f"{key:12} {value}")


def weights_list(*, json: Json = False) -> None:
    """List known published checkpoints, with their published accuracy.

    Example: vitrail weights list
    """
    from vitrail.weights.catalogue import CATALOGUE, RECOMMENDED

    if json:
        sizes = ("resolution", "megabytes")
        rows = [{**asdict(e), **{key: getattr(e, key) for key in sizes}} for e in CATALOGUE]
        print_json(rows)
        return
    short = {full: name for name, full in RECOMMENDED.items()}
    table = new_table("source", "model", "trained on", "px", "MB", "top-1", "licence")
    for entry in CATALOGUE:
        top1 = f"{entry.top1:.2f}" if entry.cited else ""
        pixels = "x".join(map(str, sorted(set(entry.resolution))))
        row = (entry.data, pixels, f"{entry.megabytes:,.0f}", top1, entry.licence)
        table.add_row(short.get(entry.source, entry.source), entry.model.partition(",")[0], *row)
    print_table(table)
    print_line("Top-1 on ImageNet as published; --json says by whom, and the preprocessing.")


COMMANDS: dict[str, Callable[..., None]] = {
    "models": models,
    "describe": describe,
    "convert": convert,
    "weights show": weights_show,
    "weights list": weights_list,
    "demo": demo,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and end the process with its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        match given:
            case [] | ["-h" | "--help"]:
                print_line(_overview())
            case ["-V" | "--version"]:
                print_line(f"vitrail {__version__}")
            case [name, *rest] if name in COMMANDS:
                _parse(name, rest)()
            case [room, name, *rest] if f"{room} {name}" in COMMANDS:
                _parse(f"{room} {name}", rest)()
            case [name, *_]:
                hint = suggest(name, COMMANDS) or f"; there are: {', '.join(COMMANDS)}"
                raise InputError(f"unknown command {name!r}{hint} (see 'vitrail --help')")
    except InputError as error:
        sys.stderr.write(f"vitrail: {error}\n")
        sys.exit(2)
    except BrokenPipeError:  # the reader of our output has gone, such as `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def _overview() -> str:
    """Write the help of the whole: a line a command."""
    width = max(map(len, COMMANDS))
    lines = [(command.__doc__ or "").partition("\n")[0] for command in COMMANDS.values()]
    listed = [f"  {name:{width}}  {line}" for name, line in zip(COMMANDS, lines, strict=True)]
    return "\n".join(
        [
            "usage: vitrail COMMAND …",
            "",
            "The Vision Transformer of 'An Image is Worth 16x16 Words', whole.",
            "",
            *listed,
            "",
            "'vitrail COMMAND --help' shows a command's options and an example.",
            "'vitrail --version' shows the version.",
        ]
    )


def _parse(name: str, arguments: list[str]) -> Callable[[], None]:
    """Read a command's arguments to a call that is still to be made."""
    import tyro

    @functools.wraps(COMMANDS[name])
    def bind(*values: Any, **options: Any) -> Callable[[], None]:
        return functools.partial(COMMANDS[name], *values, **options)

    prog, errors = f"vitrail {name}", io.StringIO()
    try:
        with redirect_stderr(errors):
            return tyro.cli(bind, prog=prog, args=arguments, config=(tyro.conf.FlagCreatePairsOff,))
    except SystemExit as stop:
        if not stop.code:
            raise
        raise InputError(f"{_one_line(errors.getvalue())} (see '{prog} --help')") from None


def _one_line(box: str) -> str:
    """Flatten the parser's framed message: its first section, and what the user may have meant."""
    lines = [line.strip("│ ") for line in box.splitlines() if line[:1] not in "╭╰"]
    first = " ".join(itertools.takewhile(lambda line: not line.startswith("─"), lines))
    meant = lines.index("Perhaps you meant:") + 1 if "Perhaps you meant:" in lines else None
    return first if meant is None else f"{first}; perhaps you meant {lines[meant]}"
