"""Values from outside as JSON text, for checks in which nothing is taken for what it is not.

"no" is not false there, and "3" not 3, but a list may be a tuple. Imports no torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from secede.errors import ConfigError


def as_text(values: Mapping[str, Any]) -> str:
    """Return `values` as JSON; a date and the like is refused."""
    return json.dumps(dict(values), default=_refused)


def _refused(value: object) -> object:
    raise ConfigError(
        f"{value} is a {type(value).__name__}, expected text, a number, true, false, a list or a "
        "table"
    )
