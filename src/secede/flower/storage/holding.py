"""Holding a home: one process trains, erases or changes what is written there, others wait."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from secede.erasure.storage.home import Home
from secede.erasure.storage.journal import Journal
from secede.erasure.storage.locks import BusyError, Lock, locked
from secede.flower.protocol.waiting import Rarely, until

logger = logging.getLogger(__name__)


@contextmanager
def held(home: Home, seconds: float = 90, *, doing: str) -> Iterator[Lock]:
    """Hold a home, waiting for one who works in it for at most so long."""
    home.path.mkdir(parents=True, exist_ok=True)
    with Journal(home.journal):  # it must be there for the lock to name who has it
        pass
    say_so = Rarely(logger.info)
    with ExitStack() as stack:
        for left in until(seconds, 1.0):
            try:
                lock = stack.enter_context(locked(home.path, home.journal, doing=doing))
                break
            except BusyError as error:
                if left <= 0:
                    raise
                say_so(f"waiting for {error.who} to end, at most {left:.0f} seconds")
        yield lock
