"""What comes from outside: settings as JSON text, and JSON that may have been made to do harm.

In pydantic's strict mode for JSON, "no" is not false and "3" is not 3, but a list may become a
tuple. Imports no torch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from secede.errors import ConfigError

MAX_DEPTH = 32
_MAX_COMMAS = 4_000_000  # in a text: one of two bytes a value takes dozens of times that in memory
_MAX_DIGITS = 20  # of a whole number: those of 64 bits
# A string (closed or not, so that the scan stays linear) or a bracket outside of strings.
_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"?|[\[\]{}]', re.DOTALL)
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def as_json(settings: Mapping[str, Any]) -> str:
    """Return `settings` as JSON; ConfigError for a type that JSON does not have."""
    return json.dumps(dict(settings), default=_refuse)


def parse_json(text: str, **hooks: Any) -> Any:
    """Return the value of a JSON text, or raise a ValueError, of which `json_fault` tells more.

    Refuses nesting beyond `MAX_DEPTH`, more than four million values, whole numbers beyond 64 bits
    and texts that are no UTF-8. `hooks` are those of `json.loads`.
    """
    _check_size(text)
    value = json.loads(text, **{"parse_int": _parse_int, **hooks})
    if _SURROGATE.search(text):  # an escape that may stand alone
        json.dumps(value, ensure_ascii=False).encode()
    return value


def json_fault(error: ValueError) -> str:
    """Return what is wrong with a JSON text or value, in one line and without quoting it."""
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at character {error.pos}"
    if isinstance(error, UnicodeEncodeError):
        return "half a surrogate pair in a text"
    return str(error)


def _check_size(text: str) -> None:
    if text.count(",") > _MAX_COMMAS:
        raise ValueError(f"more than {_MAX_COMMAS:,} values")
    depth = 0
    for token in _TOKEN.finditer(text):
        mark = text[token.start()]
        depth += (mark in "[{") - (mark in "]}")
        if depth > MAX_DEPTH:
            raise ValueError(f"nested more than {MAX_DEPTH} deep")


def _parse_int(text: str) -> int:
    if len(text.lstrip("-")) > _MAX_DIGITS:
        raise ValueError(f"a whole number of {len(text):,} digits, at most {_MAX_DIGITS}")
    return int(text)


def _refuse(value: object) -> object:
    raise ConfigError(
        f"{value} is a {type(value).__name__}, expected text, a number, true, false, a list or a "
        "table"
    )
