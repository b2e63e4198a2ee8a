import struct
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from secede.data import catalog, loading
from secede.data.entry import Entry
from secede.errors import DataError

MNIST_LABELS = [7, 2, 1, 0, 4, 1, 4, 9, 5, 9]


def small(name: str) -> Entry:
    """The catalogue's entry, but with 20 training and 10 test images."""
    return replace(catalog.entry(name), train_count=20, test_count=10)


def write_images(path: Path, images: NDArray[np.uint8]) -> None:
    path.write_bytes(struct.pack(">4I", 0x0803, *images.shape) + images.tobytes())


def write_labels(path: Path, labels: list[int]) -> None:
    path.write_bytes(struct.pack(">2I", 0x0801, len(labels)) + bytes(labels))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """SECEDE_DATA with nothing in it, and an empty cache."""
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("SECEDE_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "data"


def write_idx(folder: Path, entry: Entry) -> dict[str, Path]:
    """Write images that are black but for one white pixel in row 2, column 5."""
    keys = ("images", "labels", "test_images", "test_labels")
    paths = {key: folder / name for key, name in zip(keys, entry.layouts[0], strict=True)}
    images = np.zeros((20, 28, 28), np.uint8)
    images[:, 2, 5] = 255
    write_images(paths["images"], images)
    write_labels(paths["labels"], [5, 1] * 10)
    write_images(paths["test_images"], images[:10])
    write_labels(paths["test_labels"], [3] * 10)
    return paths


def test_idx_images_become_floats_between_zero_and_one_with_a_channel(folder: Path) -> None:
    write_idx(folder, small("mnist"))
    dataset = loading.load(small("mnist"))
    assert dataset.train.x.shape == (20, 1, 28, 28)
    assert dataset.train.x.dtype == torch.float32
    assert dataset.train.x.is_contiguous()
    assert dataset.train.x[0].nonzero().tolist() == [[0, 2, 5]]
    assert dataset.train.x.max() == 1.0
    assert dataset.train.y.dtype == torch.int64
    assert dataset.train.y[:3].tolist() == [5, 1, 5]
    assert dataset.test.y.tolist() == [3] * 10
    assert dataset.classes == tuple("0123456789")


@pytest.mark.parametrize("name", ["emnist-balanced", "emnist47"])
def test_emnist_images_are_turned_upright(folder: Path, name: str) -> None:
    write_idx(folder, small(name))
    dataset = loading.load(small(name))
    assert dataset.train.x[0].nonzero().tolist() == [[0, 5, 2]]
    assert dataset.train.x.is_contiguous()
    assert len(dataset.classes) == 47


def test_swapped_parts_are_told_by_their_counts(folder: Path) -> None:
    paths = write_idx(folder, small("mnist"))
    write_labels(paths["labels"], [0] * 10)
    with pytest.raises(DataError, match=r"train-labels.*: holds 10 labels, expected 20"):
        loading.load(small("mnist"))


def test_labels_where_images_belong_are_told(folder: Path) -> None:
    paths = write_idx(folder, small("mnist"))
    write_labels(paths["test_images"], [0] * 10)
    with pytest.raises(DataError, match=r"t10k-images.*: found labels"):
        loading.load(small("mnist"))


def test_images_of_another_size_are_told(folder: Path) -> None:
    paths = write_idx(folder, small("mnist"))
    write_images(paths["images"], np.zeros((20, 32, 32), np.uint8))
    with pytest.raises(DataError, match=r"\(32, 32\) pixels an image, mnist has \(28, 28\)"):
        loading.load(small("mnist"))


def test_labels_out_of_range_are_told_with_their_file(folder: Path) -> None:
    paths = write_idx(folder, small("mnist"))
    write_labels(paths["labels"], [0] * 19 + [10])
    with pytest.raises(DataError, match=r"train-labels.*: label 10, mnist has 0 to 9"):
        loading.load(small("mnist"))


def test_mnist_is_not_taken_for_its_namesake(folder: Path) -> None:
    paths = write_idx(folder, small("fashion-mnist"))
    loading.load(small("fashion-mnist"))
    write_labels(paths["test_labels"], MNIST_LABELS)
    loading.load(small("mnist"))
    with pytest.raises(DataError, match="labels of mnist, not of fashion-mnist"):
        loading.load(small("fashion-mnist"))


def cifar_batch(labels: list[int]) -> bytes:
    """A minimal batch; the image at place i is filled with the byte 51 * i."""
    count = len(labels)
    pixels = b"".join(bytes([51 * place]) * 3072 for place in range(count))
    kind = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNK\x00K\x00K\x00tb"
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01"
        + b"K%c" % count
        + b"M\x00\x0c\x86"
        + kind
        + b"\x89T"
        + struct.pack("<i", len(pixels))
        + pixels
        + b"tb"
    )
    numbers = b"".join(b"K%c" % label for label in labels)
    return b"\x80\x02}(U\x06labels](" + numbers + b"eU\x04data" + array + b"u."


def write_cifar(folder: Path) -> Entry:
    """Write two images a training batch and three for testing; return an entry that says so."""
    entry = replace(catalog.entry("cifar10"), train_count=10, test_count=3)
    folder.mkdir(parents=True)
    for number, name in enumerate(entry.layouts[0]):
        labels = [8, 7, 6] if name == "test_batch" else [number, 9]
        (folder / name).write_bytes(cifar_batch(labels))
    return entry


@pytest.mark.parametrize("packed", [False, True], ids=["files", "archive"])
def test_cifar_batches_are_joined_in_order(folder: Path, tmp_path: Path, packed: bool) -> None:
    source = tmp_path / "away" if packed else folder / "cifar-10-batches-py"
    entry = write_cifar(source)
    if packed:
        with tarfile.open(folder / "cifar-10-python.tar.gz", "w:gz") as archive:
            archive.add(source, "cifar-10-batches-py")
    dataset = loading.load(entry)
    assert dataset.train.x.shape == (10, 3, 32, 32)
    assert dataset.train.y.tolist() == [0, 9, 1, 9, 2, 9, 3, 9, 4, 9]
    assert dataset.test.y.tolist() == [8, 7, 6]
    torch.testing.assert_close(dataset.test.x[:, 0, 0, 0], torch.tensor([0.0, 0.2, 0.4]))


def test_a_cifar_batch_of_another_size_is_named(folder: Path) -> None:
    entry = write_cifar(folder / "cifar10" / "cifar-10-batches-py")
    path = folder / "cifar10" / "cifar-10-batches-py" / "data_batch_3"
    path.write_bytes(cifar_batch([1]))
    with pytest.raises(DataError, match=r"data_batch_3: holds 1 images, expected 2"):
        loading.load(entry)


def test_every_fifth_embedded_image_is_for_testing() -> None:
    dataset = loading.load(catalog.entry("mnist-10k"))
    # MNIST's test set starts 7 2 1 0 4 | 1 4 9 5 9 | 0 6 9 0 1.
    assert dataset.train.y[:8].tolist() == [7, 2, 1, 0, 1, 4, 9, 5]
    assert dataset.test.y[:3].tolist() == [4, 9, 1]
    assert dataset.train.x.min() == 0.0
    assert dataset.train.x.max() == 1.0
    # The digits that are known to be in it: 1,135 ones.
    assert sum(int((part.y == 1).sum()) for part in (dataset.train, dataset.test)) == 1135


def test_a_damaged_installation_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "t10k-labels-idx1-ubyte.gz"
    monkeypatch.setitem(loading._EMBEDDED_SHA256, name, "0" * 64)
    with pytest.raises(DataError, match=f"{name}: missing or damaged; install secede again"):
        loading.load(catalog.entry("mnist-10k"))


def test_the_attribution_lies_beside_the_embedded_images() -> None:
    readme = Path(loading.__file__).parent / "embedded" / "README.md"
    for part in ("LeCun", "Cortes", "Burges", "ShareAlike 3.0"):
        assert part in readme.read_text()
