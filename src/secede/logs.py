"""Log handlers: secede's lines go nowhere by default, to a function, or to standard output.

The library logs under `secede` and its sub-packages. INFO lines are progress for people, WARNING
lines want somebody to look, DEBUG lines are details.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

LOGGER = logging.getLogger("secede")


class LineHandler(logging.Handler):
    """Passes each line on to a function, and lets its exceptions through."""

    def __init__(self, write: Callable[[str], None], level: int = logging.INFO) -> None:
        super().__init__(level)
        self._write = write

    def emit(self, record: logging.LogRecord) -> None:
        """Pass one line on."""
        self._write(self.format(record))


def add(handler: logging.Handler) -> None:
    """Add a handler, and lower the logger's level to the handler's."""
    LOGGER.addHandler(handler)
    if LOGGER.level == logging.NOTSET or LOGGER.level > handler.level:
        LOGGER.setLevel(handler.level)


def print_unless_handled() -> None:
    """Print lines unless the program has a handler of its own: `flwr log` shows the output."""
    own = [h for h in LOGGER.handlers if not isinstance(h, logging.NullHandler)]
    if not own and not logging.getLogger().handlers:
        add(LineHandler(lambda line: print(line, flush=True)))
