import numpy as np
import pytest
import torch

from secede.data.tensors import to_inputs, to_labels, to_tensor
from secede.errors import DataError


def test_arrays_of_any_memory_layout_become_tensors() -> None:
    values = np.arange(6, dtype=">i4").reshape(2, 3)[:, ::-1]
    assert to_tensor(values, "x").tolist() == [[2, 1, 0], [5, 4, 3]]


def test_a_read_only_array_is_copied() -> None:
    values = np.zeros(2, np.float32)
    values.flags.writeable = False
    to_tensor(values, "x").fill_(1)
    assert values.tolist() == [0, 0]


def test_what_is_no_array_is_named() -> None:
    with pytest.raises(DataError, match="x: found list, expected a tensor or an array"):
        to_tensor([1, 2], "x")
    with pytest.raises(DataError, match="x: found values of type object, expected numbers"):
        to_tensor(np.array([None]), "x")


def test_bytes_are_scaled_without_changing_the_original() -> None:
    given = torch.tensor([[0, 51, 255]], dtype=torch.uint8)
    torch.testing.assert_close(to_inputs(given, "x"), torch.tensor([[0.0, 0.2, 1.0]]))
    assert given.tolist() == [[0, 51, 255]]


def test_inputs_are_detached_floats() -> None:
    given = torch.ones(1, 2, dtype=torch.float64, requires_grad=True)
    result = to_inputs(given, "x")
    assert result.dtype == torch.float32
    assert not result.requires_grad


def test_labels_are_checked() -> None:
    assert to_labels(torch.tensor([1, 0], dtype=torch.int16), "y").dtype == torch.int64
    with pytest.raises(DataError, match="y: found label -3"):
        to_labels(torch.tensor([1, -3]), "y")
    with pytest.raises(DataError, match=r"y: found torch.float32, expected whole numbers"):
        to_labels(torch.tensor([1.0]), "y")
