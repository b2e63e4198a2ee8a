"""Canonical JSON (RFC 8785) for what is signed or hashed, and a strict reader for what comes back.

A verifier in any language computes the same bytes and digests: `tests/erasure/vectors` has
examples. Reading checks size and depth before anything is built.
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import rfc8785
from pydantic import ValidationError

from secede import files, strict
from secede.erasure.types import MAX_SAFE_INTEGER, Document, describe_errors
from secede.errors import ConfigError, RecordError, TrustError

D = TypeVar("D", bound=Document)


def to_canonical(value: Any) -> bytes:
    """Return the canonical JSON of `value`, as UTF-8."""
    _check_value(value, strict.MAX_DEPTH)
    try:
        return rfc8785.dumps(value)
    except ValueError as error:
        raise TrustError(f"this value has no canonical JSON: {strict.json_fault(error)}") from None


def digest(value: Any) -> str:
    """Return the SHA-256 of `value`'s canonical JSON, in hexadecimal."""
    return hashlib.sha256(to_canonical(value)).hexdigest()


def parse_json(data: bytes, limit: int) -> dict[str, Any]:
    """Return the JSON object in `data`, of at most `limit` bytes.

    Refuses deep nesting, repeated keys, NaN and integers that other readers would round. The text
    need not be canonical: where it must be, compare it with `to_canonical(parse(data, limit))`.
    """
    if len(data) > limit:
        raise TrustError(f"the document has {len(data):,} bytes, the limit is {limit:,}")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise TrustError(f"the document is not UTF-8: byte {error.start} is wrong") from None
    try:
        value = strict.parse_json(
            text,
            object_pairs_hook=_without_repeats,
            parse_constant=_refuse_constant,
            parse_float=_finite_float,
            parse_int=_safe_number,
        )
    except ValueError as error:
        raise TrustError(f"the document is not valid JSON: {strict.json_fault(error)}") from None
    if not isinstance(value, dict):
        raise TrustError(f"expected a JSON object, found {type(value).__name__}")
    return value


def parse_document(kind: type[D], data: bytes, limit: int, what: str) -> D:
    """Return the document of a kind in `data`; TrustError if it is not `what` it should be."""
    parse_json(data, limit)
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        raise TrustError(f"not {what}: {describe_errors(error)}") from None


def read_bounded(path: Path, limit: int) -> bytes:
    """Return the bytes of a regular file of at most `limit` bytes."""
    try:
        with files.open_regular(path) as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    if len(data) > limit:
        raise TrustError(f"{path} has more bytes than the limit of {limit:,}")
    return data


def save_document(path: Path, document: Document) -> None:
    """Replace the file at `path` with a document, in one step."""
    files.write_bytes(path, to_canonical(document.model_dump(mode="json")) + b"\n")


def load_document(kind: type[D], path: Path, limit: int) -> D:
    """Return the document of a kind in a file of at most `limit` bytes."""
    try:
        return parse_document(kind, read_bounded(path, limit), limit, f"a {kind.__name__.lower()}")
    except (ConfigError, TrustError) as error:
        raise RecordError(
            f"{path}: missing or damaged ({error}); restore it from a backup"
        ) from error


def _check_value(value: object, depth: int) -> None:
    """Raise if a value is nested too deep, or holds an integer that other readers would round."""
    if depth < 0:
        raise TrustError(f"this value is nested more than {strict.MAX_DEPTH} deep")
    if isinstance(value, dict):
        for item in value.values():
            _check_value(item, depth - 1)
    elif isinstance(value, list | tuple):
        for item in value:
            _check_value(item, depth - 1)
    elif isinstance(value, int) and abs(value) > MAX_SAFE_INTEGER:
        raise TrustError(f"this value has no canonical JSON: {_ROUNDED}")


_ROUNDED = "an integer is beyond ±(2^53 - 1), where readers round; write it as text or as a float"


def _safe_number(text: str) -> int | float:
    """Return an integer, or the float that is written so because it is at least 2^53."""
    if len(text) <= len(str(-MAX_SAFE_INTEGER)) and abs(int(text)) <= MAX_SAFE_INTEGER:
        return int(text)
    value = _finite_float(text)
    if rfc8785.dumps(value) != text.encode():
        raise ValueError(_ROUNDED)
    return value


def _finite_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a number is too large")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise ValueError("a key is repeated")
    return entries
