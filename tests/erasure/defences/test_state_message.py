from __future__ import annotations

import json
import math
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from secede import state as states
from secede.erasure.defences.state_message import limit_bytes, pack_state, unpack_state
from secede.errors import GuardError, StateError

LIKE = {
    "layer.weight": torch.arange(6.0).reshape(2, 3),
    "layer.bias": torch.tensor([0.5, -1.0]),
    "half": torch.ones(3, dtype=torch.bfloat16),
    "counter": torch.tensor(7),
    "empty": torch.zeros(0, 4),
}


def message(header: object, values: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + values


def parts(data: bytes) -> tuple[dict[str, Any], bytes]:
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def test_what_is_packed_comes_back_to_the_bit() -> None:
    found = unpack_state(pack_state(LIKE), LIKE)
    assert list(found) == list(LIKE)
    assert states.digest(found) == states.digest(LIKE)


def test_shared_and_strided_tensors_can_be_packed() -> None:
    value = torch.arange(6.0).reshape(2, 3)
    state = {"a": value.t(), "b": value.t()}
    assert states.digest(unpack_state(pack_state(state), state)) == states.digest(state)


def test_a_dtype_without_a_name_on_the_wire_is_refused() -> None:
    with pytest.raises(StateError, match="complex64, which cannot be sent"):
        pack_state({"a": torch.ones(1, dtype=torch.complex64)})


def test_an_oversized_message_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(GuardError, match="the message has 10,000,000 bytes, expected"):
        unpack_state(b"\0" * 10_000_000, LIKE)
    with pytest.raises(GuardError, match="expected at most 10"):
        unpack_state(pack_state(LIKE), LIKE, limit=10)


def test_the_limit_is_a_little_over_what_the_message_takes() -> None:
    large = {f"layer{i}.weight": torch.zeros(300, 300) for i in range(4)}
    assert len(pack_state(large)) <= limit_bytes(large) <= 1.03 * len(pack_state(large))
    assert len(pack_state(LIKE)) <= limit_bytes(LIKE)


def test_a_names_escapes_fit_the_limit() -> None:
    state = {"é\U0001f600" * 30: torch.zeros(1)}
    header, values = parts(pack_state(state))
    assert states.digest(unpack_state(message(header, values), state)) == states.digest(state)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_are_refused(value: float) -> None:
    bad = LIKE | {"layer.bias": torch.tensor([0.5, value])}
    with pytest.raises(GuardError, match=r"'layer.bias' holds values that are not finite"):
        unpack_state(pack_state(bad), LIKE)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"layer.bias": torch.zeros(3)}, r"has another shape than the expected \[2\]"),
        ({"layer.bias": torch.zeros(2).double()}, "another dtype than the expected F32"),
        ({"layer.bias": torch.zeros(2).int()}, "another dtype than the expected F32"),
        ({"extra": torch.zeros(1)}, "missing none, 1 unexpected"),
    ],
)
def test_another_schema_is_refused(change: dict[str, Tensor], words: str) -> None:
    with pytest.raises(GuardError, match=words):
        unpack_state(pack_state(LIKE | change), LIKE)


def test_missing_entries_are_refused() -> None:
    less = {name: value for name, value in LIKE.items() if name != "half"}
    with pytest.raises(GuardError, match="missing 'half', 0 unexpected"):
        unpack_state(pack_state(less), LIKE)


def test_metadata_is_refused() -> None:
    tensors = {name: value.clone() for name, value in LIKE.items()}
    with pytest.raises(GuardError, match="carries metadata"):
        unpack_state(safetensors.torch.save(tensors, {"format": "pt"}), LIKE)


def test_no_word_of_the_sender_gets_into_the_error() -> None:
    bad = {f"Jane Doe, born in {1970 + i}": torch.zeros(()) for i in range(5)}
    with pytest.raises(GuardError, match="5 unexpected") as caught:
        unpack_state(pack_state(bad), LIKE, limit=10_000)
    assert "Jane" not in str(caught.value)
    told = entry(0, 4, dtype="Jane Doe")
    with pytest.raises(GuardError, match="another dtype") as caught:
        unpack_state(message({"a": told, "b": entry(4, 8)}, bytes(8)), ONE)
    assert "Jane" not in str(caught.value)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "ends after 0 bytes"),
        (b"\1\0\0", "ends after 3 bytes"),
        (message(b"{}", length=3), "ends after 10 bytes"),
        (message(b"{}", length=2**63), "ends after 10 bytes"),
        (message(b" " * 2500), "header has 2,500 bytes, expected"),
        (message(b"\xff\xfe"), "not UTF-8"),
        (message(b"[]"), "expected a JSON object"),
        (message(b"{" * 100), "nested more than 32 deep"),
        (message(b'{"a":1,"a":1}'), "repeated"),
        (message(b'{"a":NaN}'), "NaN is not a number"),
        (message(b"\x80\x04\x95pickle"), "no safetensors header"),
    ],
)
def test_a_broken_header_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(GuardError, match=words):
        unpack_state(data, LIKE, limit=4000)


ONE = {"a": torch.zeros(1), "b": torch.zeros(1)}


def entry(begin: object, end: object, **other: object) -> dict[str, object]:
    return {"dtype": "F32", "shape": [1], "data_offsets": [begin, end]} | other


@pytest.mark.parametrize(
    ("a", "b", "values", "words"),
    [
        (entry(0, 4), entry(0, 4), 4, "overlap at byte 0 of 4"),
        (entry(0, 4), entry(2, 6), 6, "overlap at byte 2 of 6"),
        (entry(0, 4), entry(5, 9), 9, "have a gap at byte 4 of 9"),
        (entry(0, 4), entry(4, 8), 12, "have a gap at byte 8 of 12"),
        (entry(4, 8), entry(8, 12), 12, "have a gap at byte 0 of 12"),
        (entry(0, 4), entry(4, 8), 7, "'b' has data_offsets outside of the 7 bytes"),
        (entry(0, 4), entry(4, 2**53 - 1), 8, "'b' has data_offsets outside of the 8 bytes"),
        (entry(0, 4), entry(4, 10**200), 8, "integer is beyond"),
        (entry(-4, 0), entry(4, 8), 8, "'a' has data_offsets outside of the 8 bytes"),
        (entry(4, 0), entry(4, 8), 8, "'a' has data_offsets outside of the 8 bytes"),
        (entry(0, 5), entry(4, 8), 8, "'a' has 5 bytes of values, expected 4"),
        (entry(False, 4), entry(4, 8), 8, "not two whole numbers"),
        (entry(0.0, 4), entry(4, 8), 8, "not two whole numbers"),
        (entry(0, 4, shape=[True]), entry(4, 8), 8, r"another shape than the expected \[1\]"),
        (entry(0, 4, shape=[1.0]), entry(4, 8), 8, r"another shape than the expected \[1\]"),
        (entry(0, 4, dtype=["F32"]), entry(4, 8), 8, "another dtype"),
        (entry(0, 4, more=1), entry(4, 8), 8, "not described by dtype"),
        ([], entry(4, 8), 8, "not described by dtype"),
    ],
)
def test_entries_that_lie_about_their_place_are_refused(
    a: object, b: object, values: int, words: str
) -> None:
    with pytest.raises(GuardError, match=words):
        unpack_state(message({"a": a, "b": b}, bytes(values)), ONE)


def test_values_may_lie_in_another_order_than_the_names() -> None:
    data = message({"a": entry(4, 8), "b": entry(0, 4)}, bytes(4) + b"\0\0\x80\x3f")
    assert float(unpack_state(data, ONE)["a"]) == 1


def refused_or_sound(data: bytes) -> None:
    """A changed message is refused with one line, or is a state of the same kind."""
    try:
        found = unpack_state(data, LIKE)
    except GuardError as error:
        found, words = {}, str(error)
    else:
        words = ""
    if found:
        states.check_schema(found, LIKE)
        states.check_finite(found)
    assert "\n" not in words
    assert len(words) < 600


@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
def test_every_flipped_byte_is_refused_or_only_another_value(mask: int) -> None:
    data = pack_state(LIKE)
    for place in range(len(data)):
        refused_or_sound(data[:place] + bytes([data[place] ^ mask]) + data[place + 1 :])


def test_every_cut_is_refused() -> None:
    data = pack_state(LIKE)
    for length in range(len(data)):
        with pytest.raises(GuardError):
            unpack_state(data[:length], LIKE)


def mutated(places: list[int], content: bytes) -> bytes:
    data = bytearray(pack_state(LIKE))
    for number, place in enumerate(places):
        data[place % len(data)] = content[number % len(content)] if content else 0
    return bytes(data)


MUTATIONS = st.builds(mutated, st.lists(st.integers(0, 5000), max_size=30), st.binary(max_size=30))


@given(st.one_of(st.binary(max_size=400), MUTATIONS))
@settings(max_examples=400, deadline=None)
def test_mutated_messages_never_crash(data: bytes) -> None:
    refused_or_sound(data)


@pytest.mark.slow
@given(st.one_of(st.binary(max_size=400), MUTATIONS))
@settings(max_examples=10_000, deadline=None)
def test_ten_thousand_mutated_messages_never_crash(data: bytes) -> None:
    refused_or_sound(data)
