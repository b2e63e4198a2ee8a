"""Waits that end, and are said ever more rarely."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

AGAIN = 30.0  # seconds after which a wait is said once more; then after twice as long


def until(seconds: float, pause: float) -> Iterator[float]:
    """Yield the seconds that are left, pausing in between; the last is 0 or less."""
    end = time.monotonic() + seconds
    while True:
        left = end - time.monotonic()
        yield left
        if left <= 0:
            return
        time.sleep(min(pause, max(left, 0)))


class Rarely:
    """Says what is waited for at once, then after thirty seconds, a minute, two, and so on."""

    def __init__(
        self, say: Callable[[str], None], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._say, self._clock = say, clock
        self._next, self._pause = clock(), AGAIN

    def __call__(self, line: str) -> None:
        """Say a line if it is time to."""
        if self._clock() >= self._next:
            self._say(line)
            self._next, self._pause = self._clock() + self._pause, 2 * self._pause
