"""Settings from outside as JSON text, so that pydantic checks them strictly.

In its strict mode for JSON, "no" is not false and "3" is not 3, but a list may become a tuple.
Imports no torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from secede.errors import ConfigError


def as_json(settings: Mapping[str, Any]) -> str:
    """Return `settings` as JSON; ConfigError for a type that JSON does not have."""
    return json.dumps(dict(settings), default=_refuse)


def _refuse(value: object) -> object:
    raise ConfigError(
        f"{value} is a {type(value).__name__}, expected text, a number, true, false, a list or a "
        "table"
    )
