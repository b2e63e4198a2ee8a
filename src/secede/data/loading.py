"""Turn a catalogued set's files into a `Dataset`, checking that they are what they should be."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from secede import files
from secede.data import cifar, idx
from secede.data.entry import Entry
from secede.data.obtain import obtain
from secede.data.samples import Dataset, Samples
from secede.errors import DataError

_EMBEDDED_SHA256 = {
    "t10k-images-idx3-ubyte.gz": "1a1a05eab793c14bb050b398624a11b0ffd1a2953baed553b1b9bd079e2a20be",
    "t10k-labels-idx1-ubyte.gz": "b91679a0acfe4ba0e50a2437a903084cba1f5f92592b016a25a7dfd00455798b",
}
# The two sets have the same file names, shapes and counts, so that only this tells them apart.
_FIRST_TEST_LABELS = {
    "mnist": [7, 2, 1, 0, 4, 1, 4, 9, 5, 9],
    "fashion-mnist": [9, 2, 1, 1, 6, 1, 4, 6, 5, 7],
}


def load(entry: Entry, *, download: bool = True) -> Dataset:
    """Return the data set of a catalogue entry."""
    if entry.kind == "embedded":
        return _embedded(entry)
    found = obtain(entry, download=download)
    return _cifar(entry, found) if entry.kind == "cifar" else _idx(entry, found)


def _embedded(entry: Entry) -> Dataset:
    folder = resources.files("secede.data") / "embedded"
    images_name, labels_name = entry.layouts[0]
    with (
        resources.as_file(folder / images_name) as images,
        resources.as_file(folder / labels_name) as labels,
    ):
        for path in (images, labels):
            if not path.is_file() or files.digest(path) != _EMBEDDED_SHA256[path.name]:
                raise DataError(f"{path}: missing or damaged; install secede again")
        samples = _idx_part(entry, images, labels, entry.train_count + entry.test_count)
    fifth = torch.arange(len(samples)) % 5 == 4
    return Dataset(entry.name, samples.take(~fifth), samples.take(fifth), entry.classes)


def _idx(entry: Entry, found: dict[str, Path]) -> Dataset:
    images, labels, test_images, test_labels = (found[name] for name in entry.layouts[0])
    train = _idx_part(entry, images, labels, entry.train_count)
    test = _idx_part(entry, test_images, test_labels, entry.test_count)
    _refuse_namesake(entry, test, test_labels)
    return Dataset(entry.name, train, test, entry.classes)


def _idx_part(entry: Entry, images_path: Path, labels_path: Path, count: int) -> Samples:
    images, labels = idx.read_images(images_path), idx.read_labels(labels_path)
    _check_count(images_path, len(images), count, "images")
    _check_count(labels_path, len(labels), count, "labels")
    if images.shape[1:] != entry.shape[1:]:
        raise DataError(
            f"{images_path}: {images.shape[1:]} pixels an image, {entry.name} has {entry.shape[1:]}"
        )
    if int(labels.max()) >= len(entry.classes):
        raise DataError(
            f"{labels_path}: label {labels.max()}, {entry.name} has 0 to {len(entry.classes) - 1}"
        )
    upright = images.transpose(0, 2, 1) if entry.transposed else images
    return _samples(upright[:, None], labels)


def _cifar(entry: Entry, found: dict[str, Path]) -> Dataset:
    names = entry.layouts[0]
    *train_names, test_name = names
    if names[0] in found:
        batches = cifar.read(found)
    else:
        (archive,) = found.values()
        batches = cifar.read_archive(archive, names)
        found = {name: archive / name for name in names}  # for the error below
    for name, batch in batches.items():
        expected = entry.test_count if name == test_name else entry.train_count // len(train_names)
        _check_count(found[name], len(batch.labels), expected, "images")
    train = _joined([batches[name] for name in train_names])
    return Dataset(entry.name, train, _joined([batches[test_name]]), entry.classes)


def _joined(batches: list[cifar.Batch]) -> Samples:
    images = np.concatenate([batch.images for batch in batches])
    return _samples(images, np.concatenate([batch.labels for batch in batches]))


def _samples(images: NDArray[np.uint8], labels: NDArray[np.integer]) -> Samples:
    x = torch.from_numpy(images).to(torch.float32, memory_format=torch.contiguous_format)
    return Samples(x.div_(255), torch.from_numpy(labels).to(torch.int64))


def _check_count(path: Path, found: int, expected: int, what: str) -> None:
    if found != expected:
        raise DataError(
            f"{path}: holds {found:,} {what}, expected {expected:,}; is it another set's or part's?"
        )


def _refuse_namesake(entry: Entry, test: Samples, path: Path) -> None:
    first = test.y[:10].tolist()
    for other, labels in _FIRST_TEST_LABELS.items():
        if other != entry.name and first == labels:
            raise DataError(
                f"{path}: these are the labels of {other}, not of {entry.name}; put {entry.name} "
                f"into a folder of that name below SECEDE_DATA"
            )
