"""JSON that is signed or hashed: one way to write a value, and a strict way to read one.

Keys are sorted by code point, there are no spaces, text is UTF-8 and numbers are Python's shortest
form; NaN and infinities have none. Reading checks size and depth before anything is built.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from secede.errors import ConfigError, TrustError

DEPTH = 32
# A string (closed or not, so that the scan stays linear) or a bracket outside of strings.
_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def to_canonical(value: object) -> bytes:
    """Return the one UTF-8 text that stands for `value`."""
    _check_keys(value, DEPTH)
    try:
        text = json.dumps(
            value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
        )
        return text.encode()
    except (ValueError, TypeError, UnicodeEncodeError) as error:
        raise TrustError(f"this value has no canonical JSON: {_reason(error)}") from None


def digest(value: object) -> str:
    """Return the SHA-256 of `value`'s canonical JSON, in hexadecimal."""
    return hashlib.sha256(to_canonical(value)).hexdigest()


def parse(data: bytes, limit: int) -> dict[str, Any]:
    """Return the JSON object in `data`; too long, too deep, doubled keys and NaN are refused.

    The text need not be canonical: compare `canonical(parse(data, limit))` where it must be.
    """
    if len(data) > limit:
        raise TrustError(f"the document has {len(data):,} bytes, at most {limit:,} are read")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise TrustError(f"the document is not UTF-8: byte {error.start} is wrong") from None
    _check_depth(text)
    try:
        value = json.loads(
            text, object_pairs_hook=_once, parse_constant=_no_constant, parse_float=_finite
        )
        if _SURROGATE.search(text):  # an escape that may stand alone, which is no UTF-8
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise TrustError(f"the document is not valid JSON: {_reason(error)}") from None
    if not isinstance(value, dict):
        raise TrustError(f"expected a JSON object, found {type(value).__name__}")
    return value


def read(path: Path, limit: int) -> bytes:
    """Return a regular file's bytes; one of more than `limit` is refused before it is read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe must not hang us
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ConfigError(f"{path} is not a regular file")
            data = file.read(limit + 1)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    if len(data) > limit:
        raise TrustError(f"{path} has more than the {limit:,} bytes that are read")
    return data


def _check_depth(text: str) -> None:
    depth = 0
    for token in _TOKEN.finditer(text):
        mark = text[token.start()]
        depth += (mark in "[{") - (mark in "]}")
        if depth > DEPTH:
            raise TrustError(f"the document is nested more than {DEPTH} deep")


def _check_keys(value: object, left: int) -> None:
    if left < 0:
        raise TrustError(f"this value is nested more than {DEPTH} deep")
    if isinstance(value, Mapping):
        for key, entry in value.items():
            if not isinstance(key, str):
                raise TrustError(f"JSON's keys are text, found {type(key).__name__}")
            _check_keys(entry, left - 1)
    elif isinstance(value, list | tuple):
        for entry in value:
            _check_keys(entry, left - 1)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands there twice")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a number is too large")
    return value


def _reason(error: Exception) -> str:
    """Return why, in one line and without quoting the document."""
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at character {error.pos}"
    if isinstance(error, UnicodeEncodeError):
        return "half a surrogate pair in a text"
    if isinstance(error, RecursionError):
        return "nested too deep"
    return str(error)
