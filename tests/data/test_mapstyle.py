from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

from secede.data.mapstyle import as_samples, from_dataset, from_tensors
from secede.data.samples import Samples
from secede.errors import DataError

X, Y = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), torch.tensor([0, 2, 1])


def assert_equal_to(samples: Samples, x: Tensor, y: Tensor) -> None:
    torch.testing.assert_close(samples.x, x)
    torch.testing.assert_close(samples.y, y)


def test_samples_pass_through() -> None:
    samples = Samples(X, Y)
    assert as_samples(samples) is samples


def test_a_pair_of_tensors_or_arrays_becomes_samples() -> None:
    assert_equal_to(as_samples((X, Y)), X, Y)
    assert_equal_to(as_samples((X.numpy(), Y.numpy().astype(np.uint8))), X, Y)
    assert_equal_to(from_tensors(X, Y), X, Y)


def test_map_style_datasets_become_samples() -> None:
    assert_equal_to(as_samples(TensorDataset(X, Y)), X, Y)
    assert_equal_to(from_dataset(Subset(TensorDataset(X, Y), [2, 0])), X[[2, 0]], Y[[2, 0]])


def test_a_list_of_two_pairs_is_two_samples_not_inputs_and_labels() -> None:
    listed = [(np.array([1.0, 2.0]), 0), (np.array([3.0, 4.0]), np.int64(2))]
    assert_equal_to(as_samples(listed), X[:2], Y[:2])


def test_images_of_bytes_are_scaled() -> None:
    image = torch.full((1, 2, 2), 255, dtype=torch.uint8)
    assert_equal_to(as_samples([(image, 3)]), torch.ones(1, 1, 2, 2), torch.tensor([3]))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (5, "found int, expected Samples"),
        (iter([(X[0], 0)]), "found list_iterator"),
        ([], "the dataset is empty"),
        ((X, Y[:2]), "one label per sample"),
        ((X[:0], Y[:0]), "inputs: is empty"),
        ((X, Y.float()), "labels: found torch.float32"),
        ((X / 0, Y), "inputs: holds NaN, infinite"),
        ([X[0]], "item 0: found Tensor, expected a pair"),
        ([(X[0], 0), (X[1], 0, 1)], "item 1: found tuple, expected a pair"),
        ([("picture", 0)], "item 0: input: found str"),
        ([(X[0], 0), (X[1], 0.5)], "item 1: label 0.5, expected a whole number"),
        ([(X[0], "cat")], "item 0: label 'cat'"),
        ([(X[0], 0), (X[1, :1], 0)], r"item 1: input of \(1,\)"),
        ([(X[0], 0), (X[1].double(), 0)], "item 1: .*float64"),
        ([(X[0], -1)], "labels: found label -1"),
    ],
)
def test_what_cannot_be_samples_is_told(source: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        as_samples(source)
