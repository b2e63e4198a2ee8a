"""A clock that never goes back: not before what is written down, nor before what it said."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime


class Steady:
    """Reads a clock that somebody may set back; several threads may ask it."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._last: datetime | None = None

    def not_before(self, *moments: datetime | None) -> None:
        """Say nothing earlier than these from now on."""
        with self._lock:
            known = [at for at in (self._last, *moments) if at is not None]
            self._last = max(known, default=None)

    def __call__(self) -> datetime:
        """Return what time it is, or the last time that was known if the clock is behind it."""
        self.not_before(self._clock())
        assert self._last is not None  # the clock's own word at least
        return self._last
