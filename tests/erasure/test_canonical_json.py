from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secede.erasure.canonical_json import DEPTH, digest, parse, read, to_canonical
from secede.errors import ConfigError, SecedeError, TrustError

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner)
    ),
    max_leaves=8,
)


def test_a_value_has_one_text() -> None:
    assert to_canonical({"b": [1, 2.5, None], "a": {"ü": True}}) == (
        '{"a":{"ü":true},"b":[1,2.5,null]}'.encode()
    )
    assert to_canonical({"a": 1, "b": 2}) == to_canonical({"b": 2, "a": 1})
    assert digest({}) == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), JSON))
def test_what_is_written_is_read_back(value: dict[str, Any]) -> None:
    data = to_canonical(value)
    assert parse(data, len(data)) == value
    assert to_canonical(parse(data, len(data))) == data


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        math.inf,
        {1: "x"},
        {"a": {2: 3}},
        "\ud800",
        {1, 2},
        b"x",
        pytest.param(10**5000, id="huge"),
    ],
)
def test_a_value_without_a_text_is_refused(value: object) -> None:
    with pytest.raises(TrustError):
        to_canonical({"value": value} if not isinstance(value, dict) else value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"a":1,"a":1}', "twice"),
        ('{"b":{"a":1,"a":2}}', "twice"),
        ('{"a":NaN}', "NaN"),
        ('{"a":-Infinity}', "Infinity"),
        ('{"a":1e999}', "too large"),
        ('{"a":"\\ud800"}', "surrogate"),
        ('{"a":["\\ud800"]}', "surrogate"),
        ('{"a":[[{"b":[["x\\uDFFF"]]}]]}', "surrogate"),
        ('{"\\udfff":1}', "surrogate"),
        ("[1]", "expected a JSON object, found list"),
        ("1", "found int"),
        ("", "not valid JSON"),
        ('{"a":1}x', "not valid JSON"),
        ('\ufeff{"a":1}', "not valid JSON"),
        ('{"a":' + "1" * 5000 + "}", "not valid JSON"),
    ],
)
def test_what_is_not_strict_json_is_refused(text: str, told: str) -> None:
    with pytest.raises(TrustError, match=told):
        parse(text.encode(), 10_000)


def test_whole_surrogate_pairs_are_one_character() -> None:
    assert parse(b'{"a":"\\ud83d\\ude00"}', 100) == {"a": "\U0001f600"}


def test_size_is_looked_at_before_anything_else() -> None:
    assert parse(b'{"a":1}', 7) == {"a": 1}
    with pytest.raises(TrustError, match="8 bytes, at most 7"):
        parse(b"\xff" * 8, 7)
    with pytest.raises(TrustError, match="not UTF-8: byte 6"):
        parse(b'{"a":"\xff"}', 100)


def test_depth_is_bounded_and_brackets_in_strings_do_not_count() -> None:
    deepest = b'{"a":' + b"[" * (DEPTH - 1) + b"]" * (DEPTH - 1) + b"}"
    assert to_canonical(parse(deepest, 1000)) == deepest
    with pytest.raises(TrustError, match="deep"):
        parse(b'{"a":' + b"[" * DEPTH + b"]" * DEPTH + b"}", 1000)
    with pytest.raises(TrustError, match="deep"):
        to_canonical(json.loads("[" * 40 + "]" * 40))
    assert parse(b'{"a":"\\"[[[[' + b"[{" * 100 + b'"}', 1000)["a"].startswith('"[[[[')


@pytest.mark.parametrize("unit", [b"[", b"{", b'"', b'\\"', b'{"a":', b'"\\', b"\\", b'["",'])
def test_a_megabyte_of_anything_is_refused_at_once(unit: bytes) -> None:
    begun = time.process_time()
    for data in (unit * (1_000_000 // len(unit)), b'{"a":"' + unit * (900_000 // len(unit))):
        with pytest.raises(TrustError):
            parse(data, 1 << 20)
    assert time.process_time() - begun < 2


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_give_an_object_or_our_error(data: bytes) -> None:
    try:
        told = str(type(parse(data, 150)))
    except SecedeError as error:
        told = str(error)
    assert "\n" not in told


def test_files_are_read_up_to_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read(path, 5) == b"12345"
    with pytest.raises(TrustError, match="more than the 4 bytes"):
        read(path, 4)
    os.mkfifo(tmp_path / "pipe")
    for other in (tmp_path / "absent", tmp_path, tmp_path / "pipe"):
        with pytest.raises(ConfigError):
            read(other, 5)
