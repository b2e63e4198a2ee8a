"""Arrays read where they lie: the same values and digests as read one by one, and nothing else."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from secede import state as states
from secede.errors import GuardError
from secede.flower.protocol import arrays

KINDS = ("float32", "float64", "float16", "int64", "int32", "uint8", "bool")


def record(value: np.ndarray) -> ArrayRecord:
    return ArrayRecord({"w": Array(value)})


@given(
    value=st.sampled_from(KINDS).flatmap(
        lambda kind: arrays_of.arrays(
            kind, arrays_of.array_shapes(min_dims=0, max_dims=3, max_side=4)
        )
    ),
    by_columns=st.booleans(),
)
def test_values_read_where_they_lie_are_the_same(value: np.ndarray, by_columns: bool) -> None:
    given = record(np.array(value, order="F" if by_columns else "C"))
    like = {"w": torch.from_numpy(np.array(value))}
    slow = arrays.to_state(given, like)
    fast = arrays.to_state(given, like, shared=True)
    assert fast["w"].dtype == slow["w"].dtype
    assert fast["w"].shape == slow["w"].shape
    assert states.digest(fast) == states.digest(slow) == states.digest(arrays.to_tensors(given))


def test_an_entry_without_values_is_read_too() -> None:
    assert arrays.to_tensors(record(np.zeros((2, 0), "float32")))["w"].shape == (2, 0)


def test_values_are_not_copied() -> None:
    given = record(np.arange(6, dtype="float32"))
    first, second = arrays.to_tensors(given)["w"], arrays.to_tensors(given)["w"]
    assert first.data_ptr() == second.data_ptr()
    like = {"w": torch.zeros(6)}
    own = arrays.to_state(given, like)["w"]  # of which anybody may write
    own += 1
    assert first.tolist() == [0, 1, 2, 3, 4, 5]


def saved(value: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, value, allow_pickle=True)
    return stream.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no array",
        saved(np.arange(8.0))[:-1],
        saved(np.array([{}], dtype=object)),
        saved(np.arange(3, dtype=">f4")),
        saved(np.array(["a", "b"])),
        saved(np.arange(8.0))[:9] + b"\xff" + saved(np.arange(8.0))[10:],
    ],
    ids=["empty", "other", "cut", "object", "big-endian", "text", "header"],
)
def test_what_is_no_array_of_numbers_is_refused(data: bytes) -> None:
    found = ArrayRecord({"w": Array("float32", (8,), "numpy.ndarray", data)})
    with pytest.raises(GuardError, match="'w' is no array of "):
        arrays.to_tensors(found)


def test_only_the_form_that_numpy_writes_is_read() -> None:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.arange(3.0), version=(2, 0))
    found = ArrayRecord({"w": Array("float64", (3,), "numpy.ndarray", stream.getvalue())})
    with pytest.raises(GuardError, match=r"'w' is no array of torch.float64"):
        arrays.to_tensors(found)


SPITEFUL = {  # each of these ended everybody's training and erasures, by another error than ours
    "deep": "(" + "-" * 9_000 + "4, 8)",
    "open": "(" * 9_000,
    "huge": f"({2**60}, {2**60})",
}


@pytest.mark.parametrize("shape", SPITEFUL.values(), ids=SPITEFUL)
def test_a_header_made_to_break_its_parser_is_compared_and_refused(shape: str) -> None:
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    data = np.lib.format.magic(1, 0) + len(header).to_bytes(2, "little") + header + bytes(32)
    found = ArrayRecord({"w": Array("float32", (8,), "numpy.ndarray", data)})
    with pytest.raises(GuardError, match=r"'w' is no array of torch.float32"):
        arrays.to_state(found, {"w": torch.zeros(8)})
    with pytest.raises(GuardError, match=r"'w' is no array of torch.float32"):
        arrays.to_tensors(found)
