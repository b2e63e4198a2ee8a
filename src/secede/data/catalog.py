"""The named data sets, and `load`, which gives any of them or a user's own `.npz`.

Importing this module does not import torch: the command line lists the table from here.
"""

from __future__ import annotations

import string
from pathlib import Path
from typing import TYPE_CHECKING

from secede.data.entry import Entry, RemoteFile
from secede.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from secede.data.samples import Dataset

_DIGITS = tuple(string.digits)
_CLOTHES = (
    "t-shirt",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)
_CHARACTERS = (*string.digits, *string.ascii_uppercase, *"abdefghnqrt")
_OBJECTS = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
_BATCHES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")


def _idx_names(train: str, test: str) -> tuple[str, str, str, str]:
    images, labels = "images-idx3-ubyte.gz", "labels-idx1-ubyte.gz"
    return f"{train}-{images}", f"{train}-{labels}", f"{test}-{images}", f"{test}-{labels}"


def _remote(
    names: tuple[str, ...], mirrors: tuple[str, ...], contents: tuple[tuple[int, str], ...]
) -> tuple[RemoteFile, ...]:
    return tuple(
        RemoteFile(
            name=name,
            urls=tuple(mirror + name for mirror in mirrors),
            checksum=f"sha256:{sha256}",
            size=size,
        )
        for name, (size, sha256) in zip(names, contents, strict=True)
    )


_MNIST = Entry(
    name="mnist",
    description="handwritten digits",
    kind="idx",
    shape=(1, 28, 28),
    classes=_DIGITS,
    train_count=60_000,
    test_count=10_000,
    licence="CC BY-SA 3.0",
    layouts=(_idx_names("train", "t10k"),),
    folders=("mnist", "MNIST/raw", "."),
    remote=_remote(
        _idx_names("train", "t10k"),
        (
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        (
            (9_912_422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
            (28_881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
            (1_648_877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
            (4_542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
        ),
    ),
)
_FASHION = Entry(
    name="fashion-mnist",
    description="articles of clothing",
    kind="idx",
    shape=(1, 28, 28),
    classes=_CLOTHES,
    train_count=60_000,
    test_count=10_000,
    licence="MIT",
    layouts=(_idx_names("train", "t10k"),),
    folders=("fashion-mnist", "FashionMNIST/raw", "."),
    remote=_remote(
        _idx_names("train", "t10k"),
        (
            # Its authors' own, at one commit, then Keras's copy. Their other address has no https.
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/"
            "b2617bb6d3ffa2e429640350f613e3291e10b141/data/fashion/",
            "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
        ),
        (
            (26_421_880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
            (29_515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
            (4_422_102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
            (5_148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
        ),
    ),
)
_EMNIST = Entry(
    name="emnist-balanced",
    description="handwritten digits and letters, the official Balanced split",
    kind="idx",
    shape=(1, 28, 28),
    classes=_CHARACTERS,
    train_count=112_800,
    test_count=18_800,
    licence="none stated; from NIST Special Database 19",
    layouts=(_idx_names("emnist-balanced-train", "emnist-balanced-test"),),
    folders=("emnist-balanced", "EMNIST/raw", "EMNIST/raw/gzip", "gzip", "."),
    remote=_remote(
        ("gzip.zip",),
        ("https://biometrics.nist.gov/cs_links/EMNIST/",),
        ((561_753_746, "fb9bb67e33772a9cc0b895e4ecf36d2cf35be8b709693c3564cea2a019fcda8e"),),
    ),
    zip_folder="gzip",
    transposed=True,
)
_EMNIST47 = Entry(
    name="emnist47",
    description="the 47 EMNIST classes, drawn from other splits: not the official Balanced one",
    kind="idx",
    shape=(1, 28, 28),
    classes=_CHARACTERS,
    train_count=30_456,
    test_count=5_076,
    licence="none stated; from NIST Special Database 19",
    layouts=(_idx_names("emnist47-derived-train", "emnist47-derived-test"),),
    folders=("emnist47", "."),
    transposed=True,
)
_CIFAR10 = Entry(
    name="cifar10",
    description="small colour photographs",
    kind="cifar",
    shape=(3, 32, 32),
    classes=_OBJECTS,
    train_count=50_000,
    test_count=10_000,
    licence="none stated; cite Krizhevsky 2009",
    layouts=(_BATCHES, ("cifar-10-python.tar.gz",)),
    folders=("cifar10/cifar-10-batches-py", "cifar-10-batches-py", "cifar10", "."),
    remote=_remote(
        ("cifar-10-python.tar.gz",),
        ("https://www.cs.toronto.edu/~kriz/",),
        ((170_498_071, "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"),),
    ),
)
_MNIST_10K = Entry(
    name="mnist-10k",
    description="MNIST's test set, embedded in the package: every fifth image is for testing",
    kind="embedded",
    shape=(1, 28, 28),
    classes=_DIGITS,
    train_count=8_000,
    test_count=2_000,
    licence="CC BY-SA 3.0",
    layouts=(("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"),),
)

_ENTRIES = {
    each.name: each for each in (_MNIST, _FASHION, _EMNIST, _EMNIST47, _CIFAR10, _MNIST_10K)
}
NAMES = tuple(_ENTRIES)


def entries() -> tuple[Entry, ...]:
    """Return all named data sets."""
    return tuple(_ENTRIES.values())


def entry(name: str) -> Entry:
    """Return the named data set's entry."""
    if name in _ENTRIES:
        return _ENTRIES[name]
    raise ConfigError(
        f"unknown data set {name!r}: {did_you_mean(name, NAMES)}"
        f"Known are {', '.join(NAMES)}, or a path ending in .npz"
    )


def load(name_or_path: str | Path, *, download: bool = True) -> Dataset:
    """Return a data set by its name, or a user's own by the path of its `.npz` file."""
    if str(name_or_path).endswith(".npz"):
        from secede.data import npz

        return npz.read(Path(name_or_path))
    found = entry(str(name_or_path))
    from secede.data import loading

    return loading.load(found, download=download)
