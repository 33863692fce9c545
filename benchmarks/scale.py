"""Start, memory, speed and resume of large datasets: ours, ours before, torch and webdataset.

    python benchmarks/scale.py --before ../older            # a checkout of ours without an index
    python benchmarks/scale.py --files 20000 --samples 20000 --names 1000000

The data is made: a folder of tiny JPEGs (links to a few files, in 1,000 class folders), the same
images in tar shards, and an index of 14 million names without files. Each measurement is a new
process. It times, after all imports: from opening the training images to the first batch; the
images a second of the loader alone (decoding, no augmentation, two workers); and from opening to
the batch in the middle of an epoch, as a resumed run does. Memory is the peak beyond the imports of
one process, without its loader's children, alone and as the mean of four at once. It counts mapped
pages, which the four share; what each has for itself at the end is counted apart.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import time
from collections.abc import Generator, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import tyro
from peers import mend_torchvision

CLASSES, BATCH, WORKERS, SIDE = 1000, 256, 2, 32


@dataclass(frozen=True, kw_only=True)
class Scale:
    """What is made and measured."""

    files: int = 200_000
    """Images in the folder."""
    samples: int = 200_000
    """Images in the shards."""
    shards: int = 20
    names: int = 14_000_000
    """Names in the index without files."""
    batches: int = 60
    """Batches of 256 that the loader's speed is taken from."""
    before: Path | None = None
    """A checkout of an older version of ours, to be measured beside."""
    only: str = ""
    """Measure the rows whose names match this regular expression."""
    folder: Path | None = None
    """Where the data is made and kept. Default: a folder that is removed."""


def jpeg(number: int) -> bytes:
    """Draw a tiny image."""
    import numpy as np
    from PIL import Image

    pixels = np.random.default_rng(number).integers(0, 256, (4, 4, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).resize((SIDE, SIDE)).save(file, "JPEG", quality=80)
    return file.getvalue()


def make_folder(root: Path, count: int) -> None:
    """Make a folder of images, as links to a hundred files."""
    (root / "images").mkdir(parents=True)
    for number in range(100):
        (root / "images" / f"{number}.jpg").write_bytes(jpeg(number))
    for number in range(CLASSES):
        (root / "folder" / "train" / f"n{number:08}").mkdir(parents=True)
    for number in range(count):
        place = root / "folder" / "train" / f"n{number % CLASSES:08}" / f"n{number:08}.jpg"
        os.link(root / "images" / f"{number // CLASSES % 100}.jpg", place)


def make_shards(root: Path, count: int, shards: int) -> None:
    """Make tar shards of images with labels."""
    (root / "shards").mkdir()
    (root / "shards" / "classes.txt").write_text("\n".join(f"n{n:08}" for n in range(CLASSES)))
    contents = [jpeg(number) for number in range(100)]
    for shard in range(shards):
        with tarfile.open(root / "shards" / f"train-{shard:04}.tar", "w") as file:
            for number in range(shard, count, shards):
                label = str(number % CLASSES).encode()
                for name, content in (("jpg", contents[number % 100]), ("cls", label)):
                    member = tarfile.TarInfo(f"{number:08}.{name}")
                    member.size = len(content)
                    file.addfile(member, io.BytesIO(content))


def make_index(root: Path, count: int) -> None:
    """Make the index of a folder that has no files, so that it need not have them."""
    import numpy as np

    from vitrail.data.datasets import index_files
    from vitrail.data.datasets.filenames import Names

    place = root / "names"
    folders = [place / "train" / f"n{number:08}" for number in range(CLASSES)]
    for folder in (*folders, place / "val" / folders[0].name):
        folder.mkdir(parents=True)
    then = time.time() - 60
    read = [place, place / "train", *folders]
    for path in read:
        os.utime(path, (then, then))
    each = -(-count // CLASSES)
    parts = [
        Names([b"train/%s/n%08d_%08d.JPEG" % (os.fsencode(f.name), n, k) for k in range(each)])
        for n, f in enumerate(folders)
    ]
    index = index_files.DatasetIndex(
        classes=tuple(folder.name for folder in folders),
        labels=np.repeat(np.arange(CLASSES), each),
        names=Names.join(parts),
        made_from=tuple((os.fspath(path), index_files.changed_at(path)) for path in read),
    )
    key = repr(("folder", os.path.abspath(place), [b"train"], b"train", False))
    index_files.keep_index(place, key, lambda: index)
    with suppress(ImportError):  # an older version of ours hashes names when it holds images out
        from vitrail.data.datasets.open import open_data
        from vitrail.data.name_hashes import name_hashes

        name_hashes(open_data(place, split="train"))  # pyright: ignore[reportArgumentType]


def our_batches(data: str, start: int, stop: int) -> Generator[Any, None, None]:
    """Make ours by number, or of a stream."""
    from vitrail.data.batches import TrainBatches
    from vitrail.data.dataset import ImageDataset
    from vitrail.data.datasets.open import open_data
    from vitrail.data.loader import Loader, LoaderConfig
    from vitrail.data.transforms.augment import Augment
    from vitrail.data.transforms.preprocess import Preprocess

    size: Any = {"mean": (0.5,) * 3, "std": (0.5,) * 3, "size": (SIDE, SIDE)}
    preprocess = Preprocess(**size, interpolation="bilinear", fit="stretch")
    plain, config = Augment(crop="whole", flip=0), LoaderConfig(workers=WORKERS)
    dataset = open_data(data, split="train")
    dataset.fingerprint()
    if isinstance(dataset, ImageDataset):
        batches = TrainBatches(dataset, plain, preprocess, batch=BATCH, seed=0)
        yield from Loader(batches.__getitem__, range(start, stop), config)
        return
    from vitrail.data.streaming import Cursor, StreamBatches

    streamed = StreamBatches(dataset, plain, preprocess, batch=BATCH, seed=0)
    saved = Path(os.environ["SCALE_CURSOR"])
    cursor = Cursor.load(json.loads(saved.read_text())) if start else Cursor()
    portions = streamed.portions(cursor)
    if not start:  # keep the cursor of the middle, as a checkpoint does
        middle = int(os.environ["SCALE_MIDDLE"])

        def noted() -> Iterator[Any]:
            for portion in streamed.portions(cursor):
                if portion.after.step == middle:
                    saved.write_text(json.dumps(portion.after.save()))
                yield portion

        portions = noted()
    yield from Loader(streamed.make, islice(portions, stop - start), config, read_ahead=True)


def torch_batches(data: str, start: int, stop: int) -> Generator[Any, None, None]:
    """Make torchvision's ImageFolder's; a resume skips the indices of earlier batches."""
    import torch
    from torch.utils.data import DataLoader
    from torchvision.datasets import ImageFolder  # mended by be_child
    from torchvision.transforms import PILToTensor

    dataset = ImageFolder(data, PILToTensor())
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(0))
    chosen = order[start * BATCH : stop * BATCH].tolist()
    yield from DataLoader(dataset, BATCH, sampler=chosen, num_workers=WORKERS)


def web_batches(data: str, start: int, stop: int) -> Generator[Any, None, None]:
    """Make webdataset's, with its shuffle buffer; a resume reads the epoch so far again."""
    import numpy as np
    import torch
    from PIL import Image

    webdataset: Any = importlib.import_module("webdataset")

    def decode(sample: dict[str, Any]) -> tuple[Any, int]:
        image = Image.open(io.BytesIO(sample["jpg"]), formats=["JPEG"])
        return torch.from_numpy(np.array(image)), int(sample["cls"])

    shards = sorted(str(path) for path in Path(data).glob("*.tar"))
    dataset = webdataset.WebDataset(shards, shardshuffle=len(shards), seed=0).shuffle(2048)
    loader = webdataset.WebLoader(
        dataset.map(decode).batched(BATCH), batch_size=None, num_workers=WORKERS
    )
    yield from islice(iter(loader), start, stop)


SIDES = {"ours": our_batches, "torch": torch_batches, "webdataset": web_batches}


def be_child(side: str, data: str, start: int, stop: int) -> None:
    """Measure one thing and print it."""
    warm = {
        "ours": ("vitrail.data.datasets.open", "vitrail.data.batches", "vitrail.data.loader"),
        "torch": ("torchvision.datasets",),
        "webdataset": ("webdataset",),
    }
    mend_torchvision()
    for name in ("numpy", "torch", "PIL.Image", *warm[side]):
        importlib.import_module(name)
    held, own, begin = memory("VmRSS"), private(), time.perf_counter()
    if "/names" in data:
        seconds, rate = open_names(data, start), 0.0
    else:
        with closing(SIDES[side](data, start, stop)) as batches:
            next(batches)
            seconds = time.perf_counter() - begin
            count = sum(1 for _ in batches)
            rate = count * BATCH / (time.perf_counter() - begin - seconds) if count else 0.0
    peak, left = memory("VmHWM") - held, private() - own
    print(json.dumps({"seconds": seconds, "rate": rate, "peak": peak, "own": left}))


def open_names(data: str, start: int) -> float:
    """Do what a run does at its start with names alone: open, hash, count, order a batch."""
    import numpy as np

    from vitrail.data.datasets.open import open_data
    from vitrail.data.rng import Permutation
    from vitrail.data.split import split_dataset

    begin = time.perf_counter()
    place, _, held_out = data.partition("+")
    dataset: Any = open_data(place, split="train")
    parts = split_dataset(dataset, 0.1, 0) if held_out else (dataset,)
    for part in parts:
        part.fingerprint()
    parts[0].class_counts()
    order = Permutation(len(parts[0]), 0, "order", 3)
    assert len(order[start * BATCH + np.arange(BATCH)]) == BATCH
    return time.perf_counter() - begin


def private() -> float:
    """Give megabytes of this process alone, without mapped pages that others share."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


def memory(what: str) -> float:
    """Give megabytes that this process holds (VmRSS), or held at most (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(what)) / 1024


class Bench:
    """Starts children and collects rows."""

    def __init__(self, scale: Scale, root: Path) -> None:
        self._scale, self._root = scale, root
        self.rows: list[dict[str, Any]] = []

    def measure(self, title: str, side: str, data: str, middle: int, *, old: bool = False) -> None:
        """Measure start, loader, resume and four processes at once."""
        if not re.search(self._scale.only, title):
            return
        stop = self._scale.batches
        first = self._run(side, data, 0, 1, old)[0]
        loop = self._run(side, data, 0, stop, old)[0] if "/names" not in data else first
        again = self._run(side, data, middle, middle + 1, old)[0]
        four = self._run(side, data, 0, 1, old, count=4)
        self.rows.append(
            {
                "what": title,
                "start s": round(first["seconds"], 2),
                "images / s": round(loop["rate"]),
                "resume s": round(again["seconds"], 2),
                "peak MB": round(first["peak"]),
                "peak MB of 4": round(sum(each["peak"] for each in four) / 4),
                "own MB of 4": round(sum(each["own"] for each in four) / 4),
            }
        )
        print(json.dumps(self.rows[-1]), flush=True)

    def _run(
        self, side: str, data: str, start: int, stop: int, old: bool, count: int = 1
    ) -> list[dict[str, float]]:
        own = self._scale.before if old else Path(__file__).parents[1]
        assert own is not None
        environment = {
            **os.environ,
            "PYTHONPATH": os.fspath(own.absolute() / "src"),
            "VITRAIL_CACHE": os.fspath(self._root / ("old" if old else "cache")),
            "SCALE_CURSOR": os.fspath(self._root / "cursor.json"),
            "SCALE_MIDDLE": str(self._scale.batches // 2),
        }
        command = [sys.executable, __file__, "child", side, data, str(start), str(stop)]
        running = [
            subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) for _ in range(count)
        ]
        found = [child.communicate()[0] for child in running]
        assert not any(child.returncode for child in running), command
        return [json.loads(each.splitlines()[-1]) for each in found]


def main(scale: Scale) -> None:
    """Make the data, measure, and print a table."""
    with TemporaryDirectory() as own:
        root = scale.folder or Path(own)
        os.environ["VITRAIL_CACHE"] = os.fspath(root / "cache")
        if not (root / "shards").exists():
            make_folder(root, scale.files)
            make_shards(root, scale.samples, scale.shards)
            make_index(root, scale.names)
            time.sleep(3)  # an index is kept of what has not changed for two seconds
        bench = Bench(scale, root)
        middle = scale.files // BATCH // 2
        folder, shards = f"{root}/folder", f"wds:{root}/shards"
        if scale.before:
            bench.measure("before, folder", "ours", folder, middle, old=True)
            bench.measure("before, shards", "ours", shards, middle, old=True)
        bench.measure("ours, folder, first time", "ours", folder, middle)
        bench.measure("ours, folder", "ours", folder, middle)
        bench.measure("torch, folder", "torch", f"{folder}/train", middle)
        bench.measure("ours, shards, first time", "ours", shards, middle)
        bench.measure("ours, shards", "ours", shards, middle)
        bench.measure("ours, stream", "ours", f"{shards},stream=true", scale.batches // 2)
        with suppress(ImportError):
            importlib.import_module("webdataset")
            bench.measure("webdataset", "webdataset", f"{root}/shards", scale.batches // 2)
        names, place, half = f"ours, {scale.names:,} names", f"{root}/names", scale.names // 512
        bench.measure(names, "ours", place, half)
        bench.measure(f"{names}, hold_out, first time", "ours", f"{place}+hold_out", half)
        bench.measure(f"{names}, hold_out", "ours", f"{place}+hold_out", half)
    names = list(bench.rows[0])
    print(f"\n| {' | '.join(names)} |\n|---|{'---:|' * (len(names) - 1)}")
    for row in bench.rows:
        cells = [f"{row[name]:,}" for name in names[1:]]
        print(f"| {' | '.join([row['what'], *cells])} |")


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        be_child(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
    else:
        main(tyro.cli(Scale, description=__doc__))
