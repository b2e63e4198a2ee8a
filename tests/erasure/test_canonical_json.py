from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import struct
import subprocess
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.erasure import vectors
from harness.paths import ROOT
from secede.erasure.canonical_json import digest, parse_json, read_bounded, to_canonical
from secede.erasure.documents.plan import Plan
from secede.erasure.documents.receipt import Statement
from secede.errors import ConfigError, SecedeError, TrustError
from secede.strict import MAX_DEPTH

VECTORS: dict[str, list[dict[str, Any]]] = json.loads(vectors.FILE.read_text())
SAFE = 2**53 - 1
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-SAFE, SAFE)
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
    assert to_canonical([5.0, -0.0]) == b"[5,0]"
    assert digest({}) == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), JSON))
def test_what_is_written_is_read_back(value: dict[str, Any]) -> None:
    data = to_canonical(value)
    assert data.decode() == by_hand(value)
    assert parse_json(data, len(data)) == value
    assert to_canonical(parse_json(data, len(data))) == data


def test_the_vectors_are_the_canonical_form_and_its_digest() -> None:
    for vector in [*VECTORS["values"], *VECTORS["documents"]]:
        text = vector.get("input") or json.dumps(vector["value"])
        value = parse_json(f'{{"value":{text}}}'.encode(), 1 << 20)["value"]
        assert to_canonical(value).decode() == vector["canonical"], vector["name"]
        assert digest(value) == vector["sha256"], vector["name"]
    for vector in VECTORS["numbers"]:
        assert to_canonical(double(vector["ieee754"])).decode() == vector["canonical"]
    for vector in VECTORS["refused"]:
        with pytest.raises(TrustError):
            parse_json(vector["input"].encode(), 1000)


def test_the_vectors_hold_without_our_code() -> None:
    for vector in [*VECTORS["values"], *VECTORS["documents"]]:
        value = vector["value"] if "value" in vector else json.loads(vector["input"])
        assert by_hand(value) == vector["canonical"], vector["name"]
        assert hashlib.sha256(vector["canonical"].encode()).hexdigest() == vector["sha256"]
    for vector in VECTORS["numbers"]:
        assert by_hand(double(vector["ieee754"])) == vector["canonical"]


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
def test_the_javascript_in_the_docs_computes_the_same_digests() -> None:
    page = (ROOT / "docs" / "receipt.md").read_text()
    (script,) = re.findall(r"```javascript\n(.*?)```", page, re.S)
    program = f"""{script}
        for (const v of JSON.parse(require("fs").readFileSync(0)))
            console.log(digest("value" in v ? v.value : JSON.parse(v.input)));"""
    cases = [*VECTORS["values"], *VECTORS["documents"]]
    run = subprocess.run(
        ["node", "-e", program], input=json.dumps(cases), capture_output=True, text=True, check=True
    )
    assert run.stdout.split() == [vector["sha256"] for vector in cases]


def test_the_example_documents_are_those_that_our_documents_write() -> None:
    # After a change of a document: python -m harness.erasure.vectors, in tests/
    assert VECTORS["documents"] == json.loads(json.dumps(vectors.documents()))
    plan, receipt = (
        next(each for each in VECTORS["documents"] if each["name"] == name)
        for name in ("plan", "receipt payload")
    )
    assert Plan.model_validate_json(plan["canonical"]).digest() == plan["sha256"]
    assert Statement.model_validate_json(receipt["canonical"]).payload() == (
        receipt["canonical"].encode()
    )


@pytest.mark.parametrize("sign", [1, -1])
def test_integers_that_other_readers_round_are_refused(sign: int) -> None:
    assert to_canonical({"a": sign * SAFE}) == f'{{"a":{sign * SAFE}}}'.encode()
    for value in (sign * 2**53, sign * (2**53 + 1), sign * 10**5000):
        with pytest.raises(TrustError, match=r"beyond ±\(2\^53 - 1\)"):
            to_canonical({"a": [value]})
    with pytest.raises(TrustError, match=r"beyond ±\(2\^53 - 1\)"):
        parse_json(f'{{"a":{sign * (2**53 + 1)}}}'.encode(), 100)
    large = parse_json(to_canonical({"a": sign * 1e20}), 100)["a"]
    assert large == sign * 1e20
    assert isinstance(large, float)


def by_hand(value: Any) -> str:
    """Write canonical JSON by the rules of RFC 8785, without the library that secede uses."""
    if isinstance(value, dict):
        keys = sorted(value, key=lambda key: struct.unpack(f">{len(utf16(key)) // 2}H", utf16(key)))
        return "{" + ",".join(f"{by_hand(key)}:{by_hand(value[key])}" for key in keys) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(by_hand, value)) + "]"
    if isinstance(value, float):
        return ecmascript(value)
    return json.dumps(value, ensure_ascii=False)


def utf16(text: str) -> bytes:
    return text.encode("utf-16-be")


def ecmascript(value: float) -> str:
    """Write a double as ECMAScript's Number::toString does, step by step."""
    if value == 0:
        return "0"
    if value < 0:
        return "-" + ecmascript(-value)
    _, parts, exponent = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int)
    digits = "".join(map(str, parts))
    k, n = len(digits), len(parts) + exponent
    if k <= n <= 21:
        return digits + "0" * (n - k)
    if 0 < n <= 21:
        return f"{digits[:n]}.{digits[n:]}"
    if -6 < n <= 0:
        return "0." + "0" * -n + digits
    power = f"e{'+' if n > 0 else '-'}{abs(n - 1)}"
    return digits + power if k == 1 else f"{digits[0]}.{digits[1:]}{power}"


def double(bits: str) -> float:
    value: float = struct.unpack(">d", bytes.fromhex(bits))[0]
    return value


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
        ('{"a":1,"a":1}', "repeated"),
        ('{"b":{"a":1,"a":2}}', "repeated"),
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
        parse_json(text.encode(), 10_000)


def test_whole_surrogate_pairs_are_one_character() -> None:
    assert parse_json(b'{"a":"\\ud83d\\ude00"}', 100) == {"a": "\U0001f600"}


def test_size_is_looked_at_before_anything_else() -> None:
    assert parse_json(b'{"a":1}', 7) == {"a": 1}
    with pytest.raises(TrustError, match="8 bytes, the limit is 7"):
        parse_json(b"\xff" * 8, 7)
    with pytest.raises(TrustError, match="not UTF-8: byte 6"):
        parse_json(b'{"a":"\xff"}', 100)


def test_depth_is_bounded_and_brackets_in_strings_do_not_count() -> None:
    deepest = b'{"a":' + b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1) + b"}"
    assert to_canonical(parse_json(deepest, 1000)) == deepest
    with pytest.raises(TrustError, match="deep"):
        parse_json(b'{"a":' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH + b"}", 1000)
    with pytest.raises(TrustError, match="deep"):
        to_canonical(json.loads("[" * 40 + "]" * 40))
    assert parse_json(b'{"a":"\\"[[[[' + b"[{" * 100 + b'"}', 1000)["a"].startswith('"[[[[')


@pytest.mark.parametrize("unit", [b"[", b"{", b'"', b'\\"', b'{"a":', b'"\\', b"\\", b'["",'])
def test_a_megabyte_of_anything_is_refused_at_once(unit: bytes) -> None:
    begun = time.process_time()
    for data in (unit * (1_000_000 // len(unit)), b'{"a":"' + unit * (900_000 // len(unit))):
        with pytest.raises(TrustError):
            parse_json(data, 1 << 20)
    assert time.process_time() - begun < 2


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_give_an_object_or_our_error(data: bytes) -> None:
    try:
        told = str(type(parse_json(data, 150)))
    except SecedeError as error:
        told = str(error)
    assert "\n" not in told


def test_files_are_read_up_to_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_bounded(path, 5) == b"12345"
    with pytest.raises(TrustError, match="more bytes than the limit of 4"):
        read_bounded(path, 4)
    os.mkfifo(tmp_path / "pipe")
    for other in (tmp_path / "absent", tmp_path, tmp_path / "pipe"):
        with pytest.raises(ConfigError):
            read_bounded(other, 5)
