"""Commands on datasets: check one, fetch public ones, show what training sees."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from vitrail.cli.options import Data, Json, Workers, optional
from vitrail.config import InputError
from vitrail.console import print_json, print_line
from vitrail.result import print_result, print_rows


def data_check(
    data: Data,
    *,
    fix: bool = False,
    out: Annotated[Path | None, optional("TSV")] = None,
    max_pixels: int = 100_000_000,
    workers: Workers = None,
    json: Json = False,
) -> None:
    """Check a dataset: counts, unreadable files, duplicates, sizes, mean and std.

    Example: vitrail data check photos/

    Args:
        fix: List the unreadable files in the dataset's folder, so that training skips them;
            no image is moved or changed.
        out: Write the unreadable files, images that are there twice, and the reasons there too.
        max_pixels: Refuse larger images, by their header.
        workers: Worker processes. Default: one per core.
    """
    from vitrail.data.checks.dataset_check import check_data

    found = check_data(data, fix=fix, out=out, max_pixels=max_pixels, workers=workers)
    print_result(found, json=json)
    if not any(found.splits.values()):
        raise InputError(f"{data}: none of {found.images:,} files can be read as an image")


def data_fetch(
    name: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NAME")],
    *,
    out: Annotated[Path | None, optional("DIR")] = None,
    json: Json = False,
) -> None:
    """Download a public dataset, verify and unpack it.

    Example: vitrail data fetch cifar10

    Args:
        name: cifar10, cifar100, mnist, fashion-mnist, pets, flowers102 or caltech101.
        out: Where to put it. Default: a folder in the cache.
    """
    from vitrail.data.datasets.public.fetch import fetch_data

    folder = fetch_data(name, out)
    if json:
        print_json({"name": name, "folder": str(folder)})
    else:
        print_line(f"{name}:{folder}")


def data_list(*, json: Json = False) -> None:
    """List the datasets that are built in or can be fetched.

    Example: vitrail data list
    """
    from vitrail.data.datasets.public.data_list import list_data

    print_rows(list_data(), "data", json=json)


def data_show(
    data: Data,
    *,
    out: Annotated[Path, tyro.conf.arg(metavar="PNG")] = Path("images.png"),
    split: str = "train",
    augment: Annotated[str | None, optional("LEVEL")] = None,
    size: int = 96,
    count: int = 64,
    seed: int = 0,
    json: Json = False,
) -> None:
    """Draw a contact sheet of images as training sees them.

    Example: vitrail data show photos/ --augment medium1 --out images.png

    Args:
        out: The image to write.
        split: train, val, test or all.
        augment: none, light1, light2, medium1, medium2, strong1 or strong2. Default: images as
            evaluation sees them.
        size: Side of each image in pixels.
        count: Number of images.
        seed: Seed of the sample and its augmentation.
    """
    from vitrail.data.contact_sheet import show_data

    drawn = show_data(data, out, split=split, augment=augment, size=size, count=count, seed=seed)
    print_result(drawn, json=json)
