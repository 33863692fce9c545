"""Images in a folder: ROOT/CLASS/…, or ROOT/{train,val,test}/CLASS/….

The first folder below ROOT or a split is the class; images may be in deeper folders. Every file
that is not hidden counts as an image, so that unreadable files are reported, unless its ending says
that it is something else: a video, a side file, a text.
Classes and files are sorted by their bytes, the same on every machine.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple
from unicodedata import normalize

import numpy as np

from vitrail.config import InputError
from vitrail.console import show_progress
from vitrail.data.dataset import EXCERPT, ImageDataset, excerpt_of
from vitrail.data.datasets.decisions import BACKUP, DECISIONS
from vitrail.data.datasets.filenames import Names
from vitrail.data.datasets.index_files import DatasetIndex, keep_index, keep_part
from vitrail.data.datasets.labels import UNLABELED
from vitrail.data.datasets.mapped import release_pages
from vitrail.data.datasets.unreadable_list import UNREADABLE_LIST
from vitrail.data.loader import Loader, LoaderConfig
from vitrail.data.name_hashes import name_hashes
from vitrail.data.split import SPLITS, choose_split, split_indices, split_word
from vitrail.text import neighbors, printable, quoted, show

# Without blocking, because reading a pipe among the images would never end.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_MANY, _WALKERS = 64, 16  # folders from which on they are read side by side, and how many
_LARGEST = 1 << 30  # bytes of an image file: 100 megapixels of 8 bytes, and some more
# What operating systems leave in folders, besides names that begin with a dot; in lower case.
_HIDDEN = {b"thumbs.db", b"ehthumbs.db", b"desktop.ini", b"icon\r", b"$recycle.bin", b"__macosx"}
_HIDDEN |= {b"@eadir", b"lost+found", b"system volume information", os.fsencode(UNREADABLE_LIST)}
_HIDDEN |= {os.fsencode(DECISIONS), os.fsencode(BACKUP)}
# What lies among photos and is none: videos, phones' and editors' side files, texts, tables.
_OTHERS = frozenset(
    b"aae mov mp4 m4v avi mkv webm 3gp thm xmp lrv txt md rst csv tsv json jsonl ndjson xml yaml "
    b"yml html htm log ini toml py ipynb pdf doc docx xls xlsx ods odt rtf ppt pptx mat".split()
)


class FolderDataset(ImageDataset):
    """Image files in a folder or below it."""

    def __init__(
        self,
        name: str,
        classes: Sequence[str],
        labels: np.ndarray,
        root: Path,
        files: Names,
        notes: Sequence[str] = (),
    ) -> None:
        super().__init__(name, classes, labels, root)
        assert len(files) == len(labels)
        self.notes = tuple(notes)
        """Remarks on the dataset, one line each."""
        self._root, self._files = root, files
        self._base = os.fsencode(os.path.abspath(root))

    def read(self, index: int) -> bytes:
        """Read an image file; OSError if it is gone, locked, not a regular file or huge."""
        return read_image_file(os.path.join(self._base, self._files[index]))

    def where(self, index: int) -> str:
        """Name an image by its path below the root folder, printable."""
        return printable(os.fsdecode(self._files[index]))

    def image_names(self) -> Iterator[str]:
        """Name all images, in their order."""
        return map(printable, map(os.fsdecode, self._files))

    def encoded_names(self, start: int, stop: int) -> list[bytes]:
        """Name some images in UTF-8; nearly all names are printable as they are."""
        text, ends = self._files.some(start, stop)
        whole = text.tobytes()
        names = [whole[first:last] for first, last in pairwise((0, *ends.tolist()))]
        odd = np.flatnonzero((text < ord(" ")) | (text > ord("~")) | (text == ord("\\")))
        for row in np.unique(np.searchsorted(ends, odd, "right")).tolist():
            names[row] = printable(os.fsdecode(names[row])).encode("utf-8", "surrogateescape")
        return names

    def size(self, index: int) -> int:
        """Return the size of the file."""
        return self._size(self._files[index])

    def sizes(self, indices: np.ndarray) -> Iterator[int]:
        """Return the sizes of some files."""
        yield from map(self._size, self._files.take(indices))
        release_pages(self._files.text, self._files.ends)

    def _size(self, name: bytes) -> int:
        try:
            return os.stat(os.path.join(self._base, name)).st_size
        except OSError:
            return -1

    def excerpt(self, index: int) -> bytes:
        """Read no more of an image file than that."""
        path = os.path.join(self._base, self._files[index])
        with open(os.open(path, _FLAGS), "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            if size <= 2 * EXCERPT:
                return excerpt_of(file.read())
            first = file.read(EXCERPT)
            file.seek(-EXCERPT, os.SEEK_END)
            return b"%d " % size + first + file.read(EXCERPT)

    def storage(self) -> str:
        """Hash the folder's path, and each file's size and modification time."""
        digest = hashlib.sha256(self._base)
        for index in range(len(self)):
            with suppress(OSError):  # a missing file changes the hash, too
                status = os.stat(os.path.join(self._base, self._files[index]))
                digest.update(b"%d %d %d;" % (index, status.st_size, status.st_mtime_ns))
        return digest.hexdigest()

    def part(self, indices: np.ndarray, name: str) -> FolderDataset:
        """Select some of the images, with the dataset's notes."""
        files, labels = self._files.take(indices), self.labels[indices]
        return FolderDataset(name, self.classes, labels, self._root, files, self.notes)

    def _hash_names(self, update: Callable[[bytes], None]) -> None:
        update(self._files.hashed.encode())


def read_image_file(path: bytes) -> bytes:
    """Read a whole image file."""
    with open(os.open(path, _FLAGS), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "Not a plain file", os.fsdecode(path))
        if status.st_size > _LARGEST:
            raise OSError(errno.EFBIG, "Too large for an image", os.fsdecode(path))
        return file.read()


def find_files(folder: Path) -> list[bytes]:
    """List all files in a folder and below it that are not hidden, by their relative paths."""
    return _walk(folder, b"", ())[0]


def is_among_images(root: Path, place: Path) -> bool:
    """Tell whether files at a place would count as images, or folders in it as classes, of `root`.

    They do not beside the folders of splits, nor below a name that begins with a dot.
    """
    try:
        inside = Path(os.path.realpath(place)).relative_to(os.path.realpath(root)).parts
    except ValueError:  # it is elsewhere
        return False
    if any(name.startswith(".") for name in inside):
        return False
    splits = _splits(root, _list(root, b""))
    return not splits or bool(inside and os.fsencode(inside[0]) in splits.values())


def open_folder(
    path: Path, split: str = "train", *, seed: int = 0, labels: bool = True, nested: bool = False
) -> FolderDataset:
    """Open a split of a folder; `seed` samples the images to hold out if it has no splits.

    The classes are those of the training split; other splits may not have more. Without `labels`, a
    folder of images without class folders is one class, `image`. `nested` classes are the innermost
    folders, by their whole path.
    """
    name = show(path)
    _check_folder(path)
    top = _list(path, b"")
    splits = _splits(path, top)
    first = next(iter(splits.values()), b"")
    others = [os.fsdecode(each) for each in _all(top) if each not in splits.values()]
    beside = f"{name}: {quoted(others)} left out, not in the folder of a split"
    notes = [beside] if splits and others else []
    flat = not labels and not _list(path, first).folders

    def key(parts: list[bytes], *more: object) -> str:
        what = [*more, "nested"] if nested else more
        return repr(("folder", os.path.abspath(path), parts, first, flat, *what))

    def scan(parts: list[bytes], name: str) -> DatasetIndex:
        make = _index_flat if flat else partial(_index_classes, nested=nested)
        return keep_index(
            path,
            key(parts),
            lambda: make(path, parts, first, name),
            finish=lambda index: name_hashes(opened(index, name)),
        )

    def opened(index: DatasetIndex, name: str) -> FolderDataset:
        found = [*notes, *index.notes]
        return FolderDataset(name, index.classes, index.labels, path, index.names, found)

    if set(splits) <= {"train"}:
        index, title = scan([first], name), f"{name} ({split})"
        choose_split(split, ("train", "val"), name)  # refuses what there is not
        whole = opened(index, name)
        if split == "all":
            return opened(index, title)
        part = keep_part(
            path, key([first], split, seed), index, lambda: split_indices(whole, split, seed)
        )
        return opened(part, title)
    chosen = choose_split(split, tuple(splits), name)
    if chosen == "all":
        return opened(scan(list(splits.values()), name), name)
    name = _place(path, splits[chosen])
    return opened(scan([splits[chosen]], name), name)


def _check_folder(path: Path) -> None:
    try:
        is_folder = stat.S_ISDIR(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"no folder {show(path)}{neighbors(path)}") from None
    except OSError as error:
        raise InputError(f"cannot read the folder {show(path)}: {error.strerror}") from None
    if not is_folder:
        raise InputError(f"{show(path)} is a file; expected a folder with one folder per class")


class _Listing(NamedTuple):
    """The content of a folder, by paths from the root, sorted by their bytes."""

    folders: list[bytes]
    files: list[bytes]
    others: list[bytes]
    """Files that are not images by their names' endings."""
    identity: tuple[int, int]
    read: tuple[str, int]
    """Its path and when it was last changed, as of before it was read."""


def _list(root: Path, folder: bytes) -> _Listing:
    """List one folder; only links cost an extra look at the disk."""
    folders, files, others = [], [], []
    prefix = folder + b"/" if folder else b""
    path = os.path.join(os.fsencode(root), folder)
    try:
        status = os.stat(path)
        with os.scandir(path) as entries:
            for entry in entries:
                name = entry.name
                if not name.startswith(b".") and name.lower() not in _HIDDEN:
                    if _is_folder(entry):
                        folders.append(prefix + name)
                    elif name.rpartition(b".")[2].lower() in _OTHERS:
                        others.append(prefix + name)
                    else:
                        files.append(prefix + name)
    except OSError as error:
        place = _place(root, folder)
        raise InputError(f"cannot read the folder {place}: {error.strerror}") from None
    identity, read = (status.st_dev, status.st_ino), (os.fsdecode(path), status.st_mtime_ns)
    return _Listing(sorted(folders), sorted(files), sorted(others), identity, read)


def _all(listing: _Listing) -> list[bytes]:
    return listing.folders + sorted(listing.files + listing.others)


def _is_folder(entry: os.DirEntry[bytes]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself, or to a forbidden place: reported when it is read
        return False


def _splits(root: Path, top: _Listing) -> dict[str, bytes]:
    """Find the folder of each split; empty if the folders are classes.

    A class may be called `train`: it has no subfolders, and other classes beside it. `seg_train`
    and `seg_test` are splits because the rest of their names is the same.
    """
    spoken = {folder: split_word(os.fsdecode(folder)) for folder in top.folders}
    rests = {rest for _, rest in spoken.values()}
    alike = len(spoken) > 1 and len(rests) == 1 and all(word for word, _ in spoken.values())
    found: dict[str, list[bytes]] = {word: [] for word in SPLITS}
    for folder, (word, rest) in spoken.items():
        if word and (alike or not rest):
            found[word].append(folder)
    only_splits = sum(map(len, found.values())) == len(top.folders)
    if not only_splits and not any(_list(root, folder).folders for folder in found["train"]):
        _ask_for_splits(root, spoken)
        return {}
    for folders in found.values():
        if len(folders) > 1:
            both = quoted([os.fsdecode(folder) for folder in folders])
            raise InputError(f"{show(root)} has several folders for one split: {both}; keep one")
    return {word: folders[0] for word, folders in found.items() if folders}


def _index_classes(
    root: Path, parts: Sequence[bytes], first: bytes, name: str, *, nested: bool
) -> DatasetIndex:
    """Find the images of some splits' folders; the folder `first` defines the classes.

    Without splits both are the root itself, an empty path.
    """
    defining = _list_classes(root, first)
    defined = list(map(_last, defining.folders))
    if nested:
        defined = sorted({_inner(file, first) for file in _walk(root, first, ())[0]} - {b""})
    classes = {each: number for number, each in enumerate(defined)}
    notes = note_alike(map(os.fsdecode, classes))
    outer: list[str] = []
    inner: list[str] = []
    names: list[Names] = []
    labels: list[np.ndarray] = []
    left_out = Counter[str]()
    top = _list(root, b"")
    read = [top.read, defining.read]
    for part in parts:
        listing, place = _list_classes(root, part), _place(root, part)
        read.append(listing.read)
        if not nested:
            _check_known([_last(folder) for folder in listing.folders], classes, place)
        if aside := sorted(listing.files + listing.others):
            beside = quoted([os.fsdecode(_last(file)) for file in aside])
            notes.append(f"{place}: {beside} left out, not in the folder of a class")
        above = (top.identity, listing.identity)
        walked = _walk_all(root, listing.folders, above)
        for folder, (files, folders, others) in zip(listing.folders, walked, strict=True):
            read += folders
            left_out.update(others)
            names.append(Names(files))
            if nested:
                own = [_inner(file, part) for file in files]
                _check_known(list(dict.fromkeys(own)), classes, place)
                labels.append(np.array([classes[each] for each in own], np.int64))
                continue
            labels.append(np.full(len(files), classes[_last(folder)], np.int64))
            if len(folders) > 2 and not any(os.path.dirname(file) == folder for file in files):
                outer.append(os.fsdecode(_last(folder)))
                inner += sorted(os.path.basename(path) for path, _ in folders[1:])
    notes += _note_nested(name, outer, inner)
    notes += _say_others(name, left_out)
    shown = tuple(os.fsdecode(each) for each in classes)
    joined = Names.join(names)
    if not len(joined):
        raise InputError(f"{name}: its class folders are all empty: {quoted(shown)}")
    return DatasetIndex(
        shown, np.concatenate(labels), joined, tuple(dict.fromkeys(read)), notes=tuple(notes)
    )


def _walk_all(
    root: Path, folders: Sequence[bytes], above: tuple[tuple[int, int], ...]
) -> Iterator[tuple[list[bytes], list[tuple[str, int]], Counter[str]]]:
    """Find the files of many folders side by side, with progress; disks answer late, not slowly."""
    many = len(folders) >= _MANY
    config = LoaderConfig(workers=_WALKERS if many else 0)
    with show_progress("folders", len(folders)) if many else nullcontext() as report:
        for number, found in enumerate(Loader(lambda f: _walk(root, f, above), folders, config), 1):
            yield found
            if report:
                report(number)


def _index_flat(root: Path, parts: Sequence[bytes], first: bytes, name: str) -> DatasetIndex:
    """Find images without labels: all files of some splits' folders, as one class."""
    walked = [_walk(root, part, ()) for part in parts]
    files = [file for found, _, _ in walked for file in found]
    read = tuple(folder for _, folders, _ in walked for folder in folders)
    others = sum((each for _, _, each in walked), Counter[str]())
    if not files:
        raise InputError(f"{name} is empty; expected images")
    labels = np.zeros(len(files), np.int64)
    notes = tuple(_say_others(name, others))
    return DatasetIndex((UNLABELED,), labels, Names(files), read, notes=notes)


def _say_others(name: str, others: Counter[str]) -> list[str]:
    """Note files that are not images by their endings."""
    if not others:
        return []
    kinds = ", ".join(f"{count:,} {suffix}" for suffix, count in others.most_common())
    one = others.total() == 1
    return [f"{name}: {others.total():,} file{' is' if one else 's are'} not images: {kinds}"]


def _last(folder: bytes) -> bytes:
    return folder.rpartition(b"/")[2]


def _list_classes(root: Path, part: bytes) -> _Listing:
    """List the class folders of a split; raise InputError if there are none."""
    listing, place = _list(root, part), _place(root, part)
    if not listing.folders and (listing.files or listing.others):
        files = quoted([os.fsdecode(_last(file)) for file in listing.files or listing.others])
        hint = "put the images into one folder per class"
        raise InputError(f"{place} has no folders, only files: {files}; {hint}")
    if not listing.folders:
        raise InputError(f"{place} is empty; expected a folder of images for each class")
    return listing


def _check_known(found: list[bytes], classes: Iterable[bytes], place: str) -> None:
    """Check that the training split has all classes of another split."""
    known = set(classes)
    strangers = [os.fsdecode(name) for name in found if name not in known]
    if not strangers:
        return
    alike = {_plain(os.fsdecode(name)) for name in known}
    twins = [name for name in strangers if _plain(name) in alike]
    hint = " (one there differs only by case or Unicode form)" if twins else ""
    which = quoted(twins or strangers)
    raise InputError(f"{place}: class {which} is not in the training split{hint}")


NESTED = ",nested=true"
"""DATA's option for classes that are the innermost folders."""


def _inner(file: bytes, part: bytes) -> bytes:
    return os.path.dirname(file)[len(part) + 1 if part else 0 :]


def _note_nested(name: str, outer: Sequence[str], inner: Sequence[str]) -> list[str]:
    """Note classes whose images are all in folders of their own: classes in them, or patients."""
    if not outer:
        return []
    return [
        f"{name}: the classes are {quoted(outer)}, not the folders in them, {quoted(inner)}; write "
        f"{name}{NESTED} if these are the classes, or --group '([^/]+)/[^/]+$' if they are patients"
    ]


def note_alike(classes: Iterable[str]) -> list[str]:
    """Note classes that look the same to a person."""
    groups: dict[str, list[str]] = {}
    for name in classes:
        groups.setdefault(_plain(name), []).append(name)
    same = "differ only by case, spaces or Unicode form, and are kept apart"
    return [f"classes {quoted(group)} {same}" for group in groups.values() if len(group) > 1]


def _plain(name: str) -> str:
    return normalize("NFC", normalize("NFC", " ".join(name.split())).casefold())


def _walk(
    root: Path, top: bytes, above: tuple[tuple[int, int], ...]
) -> tuple[list[bytes], list[tuple[str, int]], Counter[str]]:
    """Find all images below a folder, the folders read, and how many other files there are.

    It stops where a link leads back up.
    """
    files, read, others = list[bytes](), list[tuple[str, int]](), Counter[str]()
    stack = [(top, above)]
    while stack:
        folder, above = stack.pop()
        listing = _list(root, folder)
        if listing.identity in above:
            continue
        read.append(listing.read)
        files += listing.files
        others.update(f".{os.fsdecode(each).rpartition('.')[2].lower()}" for each in listing.others)
        stack += [(inner, (*above, listing.identity)) for inner in listing.folders]
    return sorted(files), read, others


def _ask_for_splits(root: Path, spoken: Mapping[bytes, tuple[str | None, str]]) -> None:
    """Refuse folders that speak of splits without saying plainly which is which."""
    words = [word for word, _ in spoken.values()]
    if len(words) < 2 or None in words or len(set(words)) < 2:
        return
    names = quoted([os.fsdecode(folder) for folder in spoken])
    if all(_list(root, folder).folders for folder in spoken):
        raise InputError(
            f"{show(root)}: {names} look like splits, not classes; rename them train, val and test"
        )


def _place(root: Path, folder: bytes) -> str:
    return show(root / os.fsdecode(folder))
