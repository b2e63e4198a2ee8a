"""Waits that end."""

from __future__ import annotations

import time
from collections.abc import Iterator


def until(seconds: float, pause: float) -> Iterator[float]:
    """Yield the seconds that are left, pausing in between; the last is 0 or less."""
    end = time.monotonic() + seconds
    while True:
        left = end - time.monotonic()
        yield left
        if left <= 0:
            return
        time.sleep(min(pause, max(left, 0)))
