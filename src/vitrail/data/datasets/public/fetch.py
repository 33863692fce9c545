"""Public data sets by name: downloaded, verified, unpacked and opened once, or not there at all."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from vitrail.config import InputError, suggest
from vitrail.data.datasets.public.public_registry import PUBLIC, PublicFile, PublicSet
from vitrail.data.datasets.public.unpack import unpack
from vitrail.download import cache_folder, fetch

_NOTE = "ORIGIN.txt"
_ARCHIVES = (".tar.gz", ".tgz", ".zip")


def fetched(name: str) -> Path | None:
    """Give the folder in the cache that a public set was fetched to, if it was."""
    folder = cache_folder() / "data" / name
    return folder if _is_fetched(folder, name) else None


def fetch_data(name: str, folder: Path | None = None) -> Path:
    """Fetch a public set into a folder, or into the cache; one that is there is not touched.

    The archives are removed in the end. A note in the folder says where the set is from, and its
    license.
    """
    public = _find(name)
    target = cache_folder() / "data" / name if folder is None else folder
    if _is_fetched(target, name):
        return target
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"{target}: is there already, and is no {name}; give another folder")
    downloads = cache_folder() / "downloads" / name
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Beside the target, so that it can be renamed into place as a whole.
        with TemporaryDirectory(prefix=f".{name}-", dir=target.parent) as work:
            content = _prepare(public, name, downloads, Path(work))
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
        raise InputError(f"no public set {name!r}{near}")
    return PUBLIC[name]


def _is_fetched(folder: Path, name: str) -> bool:
    """Tell by the note, which is written last."""
    try:
        with (folder / _NOTE).open(encoding="utf-8") as note:
            return note.readline() == f"{name}\n"
    except OSError:
        return False


def _prepare(public: PublicSet, name: str, downloads: Path, work: Path) -> Path:
    """Download and unpack all files of a set, and see that it can be opened."""
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
    """Put what a file holds into the set's folder, or the file itself."""
    if not saved.name.endswith(_ARCHIVES):
        shutil.copyfile(saved, content / saved.name)
    elif file.inner:
        unpack(saved, work, only=file.inner)
        unpack(work / file.inner, content)
    else:
        unpack(saved, content)
