"""Tests `data/entry.py` too."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from secede.data import catalog
from secede.data.entry import Entry
from secede.errors import ConfigError


def test_the_table_lists_the_promised_sets() -> None:
    assert catalog.NAMES == (
        "mnist",
        "fashion-mnist",
        "emnist-balanced",
        "emnist47",
        "cifar10",
        "mnist-10k",
    )
    assert tuple(each.name for each in catalog.entries()) == catalog.NAMES


@pytest.mark.parametrize("entry", catalog.entries(), ids=catalog.NAMES)
def test_each_entry_is_complete(entry: Entry) -> None:
    assert entry.description
    assert entry.licence
    assert len(set(entry.classes)) == len(entry.classes)
    assert entry.needs_network == (entry.download_bytes > 0)
    for remote in entry.remote:
        algorithm, _, digest = remote.checksum.partition(":")
        assert (algorithm, len(digest)) == ("sha256", 64)
        assert all(url.startswith("https://") for url in remote.urls)
        assert all(url.endswith(f"/{remote.name}") for url in remote.urls)


def test_only_emnist47_needs_a_folder_and_only_mnist_10k_needs_nothing() -> None:
    assert [each.name for each in catalog.entries() if each.needs_folder] == ["emnist47"]
    self_sufficient = [
        each.name for each in catalog.entries() if not (each.needs_folder or each.needs_network)
    ]
    assert self_sufficient == ["mnist-10k"]


def test_the_paper_target_classes_are_last() -> None:
    assert catalog.entry("mnist").classes[9] == "9"
    assert catalog.entry("emnist-balanced").classes[46] == "t"
    assert catalog.entry("emnist-balanced").classes[35:38] == ("Z", "a", "b")
    assert catalog.entry("cifar10").classes[9] == "truck"


def test_listing_imports_neither_torch_nor_numpy() -> None:
    program = (
        "import sys; from secede.data import catalog; catalog.entries(); "
        "print([name for name in ('torch', 'numpy') if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ran.stdout == "[]\n", ran.stderr


@pytest.mark.parametrize("name", ["minst", "MNIST", "fashion_mnist"])
def test_a_misspelt_name_is_answered_with_the_nearest(name: str) -> None:
    nearest = "fashion-mnist" if "fashion" in name else "mnist"
    with pytest.raises(ConfigError, match=f"did you mean '{nearest}'") as caught:
        catalog.load(name)
    for known in (*catalog.NAMES, ".npz"):
        assert known in str(caught.value)


def test_a_name_like_no_other_gets_the_list_alone() -> None:
    with pytest.raises(ConfigError, match=r"unknown data set 'xyz': Known are mnist, "):
        catalog.load("xyz")


@pytest.mark.parametrize("kind", [str, Path])
def test_a_path_ending_in_npz_is_the_users_own_set(tmp_path: Path, kind: type) -> None:
    y = np.array([0, 1])
    np.savez(tmp_path / "own.npz", x_train=np.eye(2), y_train=y, x_test=np.eye(2), y_test=y)
    dataset = catalog.load(kind(tmp_path / "own.npz"))
    assert dataset.train.x.tolist() == [[1, 0], [0, 1]]


def test_mnist_10k_loads_without_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECEDE_DATA", "nowhere")
    dataset = catalog.load("mnist-10k")
    assert (len(dataset.train), len(dataset.test), dataset.shape) == (8000, 2000, (1, 28, 28))
