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
    names: tuple[str, ...], mirrors: tuple[str, ...], checksums: tuple[str, ...]
) -> tuple[RemoteFile, ...]:
    return tuple(
        RemoteFile(name=name, urls=tuple(mirror + name for mirror in mirrors), checksum=checksum)
        for name, checksum in zip(names, checksums, strict=True)
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
            "sha256:440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "sha256:3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "sha256:8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "sha256:f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
    ),
    download_bytes=11_594_722,
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
        ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
        (
            "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "md5:25c81989df183df01b3e8a0aad5dffbe",
            "md5:bef4ecab320f06d8554ea6380940ec79",
            "md5:bb300cfdad3c16e7a12a480ee83cd310",
        ),
    ),
    download_bytes=30_878_645,
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
        ("md5:58c8d27c78d21e728a6bc7b3cc06412e",),
    ),
    zip_folder="gzip",
    download_bytes=561_753_746,
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
        ("md5:c58f30108f718f92721af3b95e74349a",),
    ),
    download_bytes=170_498_071,
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
