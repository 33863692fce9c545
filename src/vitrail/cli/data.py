"""Commands on images: looking a set through, fetching public ones, seeing what training sees."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from vitrail.cli.options import Json
from vitrail.config import InputError
from vitrail.console import new_table, print_json, print_line, print_renderable, show_progress

if TYPE_CHECKING:
    from vitrail.data.check import Check

Data = Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="DATA")]


def data_check(
    data: Data,
    *,
    fix: bool = False,
    out: Annotated[Path | None, tyro.conf.arg(metavar="TSV")] = None,
    max_pixels: int = 100_000_000,
    workers: int | None = None,
    json: Json = False,
) -> None:
    """Look every image of a set through: counts, bad files, duplicates, sizes, mean.

    Example: vitrail data check photos/

    Args:
        data: A folder, or csv:FILE, cifar10:DIR, hf:NAME, wds:PATTERN, digits, shapes, …
        fix: Write the bad files into a list in the set's folder, which training then skips;
            no image is moved or changed.
        out: Write the bad files and reasons there too.
        max_pixels: Refuse larger images, by their header.
        workers: Processes that look; one a core unless given.
    """
    from vitrail.data.check import check
    from vitrail.data.datasets.bad_list import list_others, write_bad_list, write_rows
    from vitrail.data.datasets.open import notes, open_splits
    from vitrail.data.decoding.decode import Limits

    splits = open_splits(data)
    total = sum(map(len, splits.values()))
    with show_progress("checking", total) as report:
        found = check(splits, limits=Limits(pixels=max_pixels), workers=workers, report=report)
    written: Path | None = None
    if out is not None:
        columns = ("split", "path", "reason", "kind")
        write_rows(out, columns, ([bad[column] for column in columns] for bad in found.bad))
    if fix:
        root = next(iter(splits.values())).root
        if root is None:
            raise InputError(f"{data} has no folder that a list of bad files could lie in")
        bad_here = {bad["path"]: bad["reason"] for bad in found.bad}
        written = write_bad_list(root, list_others(root, splits.values()) | bad_here)
    if json:
        print_json({**asdict(found), "list": str(written) if written else None})
        return
    for note in dict.fromkeys(note for source in splits.values() for note in notes(source)):
        print_line(note)
    _print_check(found)
    if written:
        print_line(f"{written}: {len(found.bad):,} files that training now skips")


def _print_check(found: Check) -> None:
    """Print what a check found, the classes first, what is wrong last."""
    from vitrail.text import printable

    table = new_table("class", *found.splits)
    for name, counts in found.classes.items():
        table.add_row(printable(name), *(f"{counts[split]:,}" for split in found.splits))
    print_renderable(table)
    good = sum(found.splits.values())
    kinds: dict[str, int] = {}
    for bad in found.bad:
        kinds[bad["kind"]] = kinds.get(bad["kind"], 0) + 1
    why = ", ".join(f"{n:,} {kind}" for kind, n in sorted(kinds.items(), key=lambda k: -k[1]))
    skipped = f", {len(found.bad):,} bad: {why}" if found.bad else ""
    print_line(f"{found.images:,} files: {good:,} good{skipped}")
    for axis, (low, middle, high) in found.sizes.items():
        print_line(f"{axis:9} {low:,} to {high:,} pixels, half of them up to {middle:,}")
    print_line(f"kinds     {', '.join(f'{n:,} {mode}' for mode, n in found.modes.items())}")
    print_line(f"largest class by smallest: {found.imbalance:.1f}")
    mean, std = (" ".join(f"{v:.4f}" for v in values) for values in (found.mean, found.std))
    print_line(f"mean      {mean}   std {std}   (of {found.measured:,} images)")
    _print_groups("the same image in several splits", found.leaks)
    _print_groups("the same image under several classes", found.conflicts)
    _print_groups("the same image more than once in a split", found.duplicates)
    for name in found.empty[:10]:
        print_line(f"no good image: {printable(name)}")
    for bad in found.bad[:10]:
        print_line(f"bad: {bad['path']}: {bad['reason']}")
    if len(found.bad) > 10:
        print_line(f"and {len(found.bad) - 10:,} more; --out FILE.tsv lists them all")


def _print_groups(what: str, groups: list[list[str]]) -> None:
    if groups:
        shown = "; ".join(" = ".join(group[:3]) for group in groups[:3])
        print_line(f"{what}: {len(groups):,}, such as {shown}")


def data_fetch(
    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME")],
    *,
    out: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None,
    json: Json = False,
) -> None:
    """Download a public set, verify and unpack it.

    Example: vitrail data fetch cifar10

    Args:
        name: cifar10, cifar100, mnist, fashion-mnist, pets, flowers102 or caltech101.
        out: The folder to put it into; one in the cache unless given.
    """
    from vitrail.data.datasets.public.fetch import fetch_data

    folder = fetch_data(name, out)
    if json:
        print_json({"name": name, "folder": str(folder)})
    else:
        print_line(f"{name}:{folder}")


def data_list(*, json: Json = False) -> None:
    """List the sets that are built in or can be fetched.

    Example: vitrail data list
    """
    from vitrail.data.datasets.public.fetch import PUBLIC, fetched

    rows = [
        {"name": name, "title": row.title, "license": row.license, "folder": fetched(name)}
        for name, row in PUBLIC.items()
    ]
    if json:
        print_json([{**row, "folder": str(row["folder"] or "") or None} for row in rows])
        return
    table = new_table("DATA", "what", "license", "here", justify="left")
    table.add_row("digits", "1,797 handwritten digits, 8 x 8, built in", "CC BY 4.0", "yes")
    table.add_row("shapes", "drawn shapes without limit, built in", "Apache-2.0", "yes")
    for row in rows:
        here = "yes" if row["folder"] else "fetch"
        table.add_row(str(row["name"]), str(row["title"]), str(row["license"]), here)
    print_renderable(table)


def data_show(
    data: Data,
    *,
    out: Annotated[Path, tyro.conf.arg(metavar="PNG")] = Path("images.png"),
    split: str = "train",
    augment: str | None = None,
    size: int = 96,
    count: int = 64,
    seed: int = 0,
    json: Json = False,
) -> None:
    """Draw a sheet of images as training sees them.

    Example: vitrail data show photos/ --augment medium1 --out images.png

    Args:
        data: A folder, or csv:FILE, cifar10:DIR, hf:NAME, wds:PATTERN, digits, shapes, …
        out: The image to write.
        split: train, val, test or all.
        augment: none, light1, light2, medium1, medium2, strong1 or strong2; as evaluation sees
            them unless given.
        size: Side of each in pixels.
        count: How many.
        seed: Which ones, and how they are augmented.
    """
    from vitrail.data.contact_sheet import draw_sheet

    written = draw_sheet(data, out, split=split, level=augment, size=size, count=count, seed=seed)
    if json:
        print_json({"file": str(out), "images": written})
    else:
        print_line(f"{out}: {written} images")
