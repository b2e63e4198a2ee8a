"""What secede logs, for tests: a list of the lines since it was made."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from secede import logs


class Lines(list[str]):
    """The lines that were logged since this was made; `forget_all` ends it."""

    def __init__(self) -> None:
        super().__init__()
        logs.add(_Collector(self))

    def has(self, *words: str) -> bool:
        """Return whether one line has all of these words."""
        return any(all(word in line for word in words) for line in self)


class _Collector(logs.LineHandler):
    def __init__(self, lines: Lines) -> None:
        super().__init__(lines.append)


@contextmanager
def passed_to(write: Callable[[str], None]) -> Iterator[None]:
    """Pass lines on to a function for as long as the context lasts."""
    handler = logs.LineHandler(write)
    logs.add(handler)
    try:
        yield
    finally:
        logs.LOGGER.removeHandler(handler)


def forget_all() -> None:
    """Remove every handler but the library's own silent one."""
    for handler in list(logs.LOGGER.handlers):
        if not isinstance(handler, logging.NullHandler):
            logs.LOGGER.removeHandler(handler)
    logs.LOGGER.setLevel(logging.NOTSET)
