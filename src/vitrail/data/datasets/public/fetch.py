"""Download public datasets by name: verified, unpacked, and whole or not there at all."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from vitrail.config import InputError, suggest
from vitrail.data.datasets.public.public_registry import PUBLIC, PublicFile, PublicSet
from vitrail.data.datasets.public.unpack import unpack
from vitrail.download import cache_folder, fetch
from vitrail.files import temporary_folder

_NOTE = "ORIGIN.txt"
_ARCHIVES = (".tar.gz", ".tgz", ".zip")


def fetched(name: str) -> Path | None:
    """Return the folder in the cache that a public dataset was downloaded to, if it was."""
    folder = cache_folder() / "data" / name
    return folder if _is_fetched(folder, name) else None


def fetch_data(name: str, out: str | Path | None = None) -> Path:
    """Download a public dataset to a folder, or to the cache; an existing one is kept.

    The archives are removed afterwards. A note in the folder names its origin and license.
    """
    public = _find(name)
    target = cache_folder() / "data" / name if out is None else Path(out)
    if _is_fetched(target, name):
        return target
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"{target}: already exists and is not {name}; give another folder")
    downloads = cache_folder() / "downloads" / name
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Beside the target, so that it can be renamed into place as a whole.
        with temporary_folder(f".{name}-", target.parent) as work:
            content = _prepare(public, name, downloads, work)
            os.rename(content, target)
    except OSError as error:
        if _is_fetched(target, name):  # another process was faster
            return target
        raise InputError(f"cannot write {target}: {error.strerror}") from None
    shutil.rmtree(downloads, ignore_errors=True)
    return target


def _find(name: str) -> PublicSet:
    if name == "imagenet":
        files = "ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar"
        where = f"log in at https://image-net.org/download-images.php for {files}"
        layout = "DIR/train/nXXXXXXXX/*.JPEG and DIR/val/nXXXXXXXX/*.JPEG"
        raise InputError(f"imagenet needs an account: {where}, and unpack them as {layout}")
    if name not in PUBLIC:
        near = suggest(name, PUBLIC) or f"; there are {', '.join(PUBLIC)}"
        raise InputError(f"no public dataset {name!r}{near}")
    return PUBLIC[name]


def _is_fetched(folder: Path, name: str) -> bool:
    """Look for the note, which is written last."""
    try:
        with (folder / _NOTE).open(encoding="utf-8") as note:
            return note.readline() == f"{name}\n"
    except OSError:
        return False


def _prepare(public: PublicSet, name: str, downloads: Path, work: Path) -> Path:
    """Download and unpack all files of a dataset, and check that it can be opened."""
    content = work / "content"
    content.mkdir()
    for file in public.files:
        saved = fetch(file.url, downloads / file.name, size=file.size, sha256=file.sha256)
        _place(saved, file, content, work)
    try:
        public.open(content, "all")
    except InputError as error:
        raise InputError(f"{public.title} has another layout than expected: {error}") from None
    urls = "".join(f"{file.url}\n" for file in public.files)
    note = f"{name}\n{public.title}, license: {public.license}\n{urls}"
    (content / _NOTE).write_text(note, encoding="utf-8")
    return content


def _place(saved: Path, file: PublicFile, content: Path, work: Path) -> None:
    """Unpack an archive into the dataset's folder, or copy a file there."""
    if not saved.name.endswith(_ARCHIVES):
        shutil.copyfile(saved, content / saved.name)
    elif file.inner:
        unpack(saved, work, only=file.inner)
        unpack(work / file.inner, content)
    else:
        unpack(saved, content)
