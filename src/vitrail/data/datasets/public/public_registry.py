"""The public datasets that can be downloaded: their URLs, hashes and licenses.

Sizes and hashes are those that TensorFlow Datasets records for the same files.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from vitrail.data.dataset import ImageDataset
from vitrail.data.datasets.public.cifar import open_cifar10, open_cifar100
from vitrail.data.datasets.public.idx import open_idx
from vitrail.data.datasets.public.official import open_caltech, open_flowers, open_pets


@dataclass(frozen=True)
class PublicFile:
    """A file to download."""

    url: str
    size: int
    sha256: str
    inner: str = ""
    """The only archive inside the archive to unpack."""

    @property
    def name(self) -> str:
        """Return the file's name, without the query of its URL."""
        return self.url.partition("?")[0].rpartition("/")[2]


@dataclass(frozen=True)
class PublicSet:
    """A dataset that everybody may download."""

    title: str
    license: str
    files: tuple[PublicFile, ...]
    open: Callable[[Path, str], ImageDataset]


_MNIST = "https://storage.googleapis.com/cvdf-datasets/mnist"
_FASHION = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
_OXFORD = "https://www.robots.ox.ac.uk/~vgg/data"
_CALTECH = "https://data.caltech.edu/records/mzrjq-6wc02/files"
_TORONTO = "https://www.cs.toronto.edu/~kriz"

PUBLIC: dict[str, PublicSet] = {
    "cifar10": PublicSet("CIFAR-10", "none stated; cite A. Krizhevsky, 2009", (
        PublicFile(f"{_TORONTO}/cifar-10-binary.tar.gz", 170_052_171,
                   "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"),
    ), open_cifar10),
    "cifar100": PublicSet("CIFAR-100", "none stated; cite A. Krizhevsky, 2009", (
        PublicFile(f"{_TORONTO}/cifar-100-binary.tar.gz", 168_513_733,
                   "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec"),
    ), open_cifar100),
    "mnist": PublicSet("MNIST", "CC BY-SA 3.0", (
        PublicFile(f"{_MNIST}/train-images-idx3-ubyte.gz", 9_912_422,
                   "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
        PublicFile(f"{_MNIST}/train-labels-idx1-ubyte.gz", 28_881,
                   "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
        PublicFile(f"{_MNIST}/t10k-images-idx3-ubyte.gz", 1_648_877,
                   "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
        PublicFile(f"{_MNIST}/t10k-labels-idx1-ubyte.gz", 4_542,
                   "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
    ), partial(open_idx, name="mnist")),
    "fashion-mnist": PublicSet("Fashion-MNIST", "MIT", (
        PublicFile(f"{_FASHION}/train-images-idx3-ubyte.gz", 26_421_880,
                   "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
        PublicFile(f"{_FASHION}/train-labels-idx1-ubyte.gz", 29_515,
                   "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
        PublicFile(f"{_FASHION}/t10k-images-idx3-ubyte.gz", 4_422_102,
                   "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
        PublicFile(f"{_FASHION}/t10k-labels-idx1-ubyte.gz", 5_148,
                   "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
    ), partial(open_idx, name="fashion-mnist")),
    "pets": PublicSet("Oxford-IIIT Pets", "CC BY-SA 4.0", (
        PublicFile(f"{_OXFORD}/pets/data/images.tar.gz", 791_918_971,
                   "67195c5e1c01f1ab5f9b6a5d22b8c27a580d896ece458917e61d459337fa318d"),
        PublicFile(f"{_OXFORD}/pets/data/annotations.tar.gz", 19_173_078,
                   "52425fb6de5c424942b7626b428656fcbd798db970a937df61750c0f1d358e91"),
    ), open_pets),
    "flowers102": PublicSet(
        "Oxford Flowers-102", "none stated; cite M.-E. Nilsback and A. Zisserman, 2008", (
        PublicFile(f"{_OXFORD}/flowers/102/102flowers.tgz", 344_862_509,
                   "2d01ecc807db462958cfe3d92f57a8c252b4abd240eb955770201e45f783b246"),
        PublicFile(f"{_OXFORD}/flowers/102/imagelabels.mat", 502,
                   "4903e94206bac23bf772aadf06451916df56b58fc483a62db32a97b82656651d"),
        PublicFile(f"{_OXFORD}/flowers/102/setid.mat", 14_989,
                   "46b8678f91fd95d3c8f4feab80d271a6c834a1dd896fe29fd3e6ad9ce5c8dccd"),
    ), open_flowers),
    "caltech101": PublicSet("Caltech-101", "CC BY 4.0", (
        PublicFile(f"{_CALTECH}/caltech-101.zip?download=1", 137_414_764,
                   "331234750fc7f77520e50d9565e8b6907b03565e30320da1401130db08c61f91",
                   inner="caltech-101/101_ObjectCategories.tar.gz"),
    ), open_caltech),
}  # fmt: skip
"""The datasets that can be downloaded, by the names under which they are opened."""
