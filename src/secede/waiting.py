"""Waits with a timeout, logged at growing intervals."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

FIRST_INTERVAL = 30.0  # seconds until a wait is logged again; then twice as long each time


def seconds_left(timeout: float, pause: float) -> Iterator[float]:
    """Yield the seconds that are left of a timeout, with pauses; the last value is 0 or less."""
    end = time.monotonic() + timeout
    while True:
        left = end - time.monotonic()
        yield left
        if left <= 0:
            return
        time.sleep(min(pause, max(left, 0)))


class LogAtIntervals:
    """Logs a wait at once, then after 30 seconds, 60 seconds, two minutes, and so on."""

    def __init__(
        self, log: Callable[[str], None], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._log, self._clock = log, clock
        self._next, self._interval = clock(), FIRST_INTERVAL

    def __call__(self, line: str) -> None:
        """Log a line if its time has come."""
        if self._clock() >= self._next:
            self._log(line)
            self._next = self._clock() + self._interval
            self._interval *= 2
