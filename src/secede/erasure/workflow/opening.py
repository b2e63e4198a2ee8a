"""Opens a session: one process at a time, consistent records, a clock that is not behind.

The ledger is verified before anything is appended, against the head that the journal keeps and
those that receipts name, and compared with journal, registry and receipts. Where they differ,
nothing is worked on.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import datetime, timedelta

from secede import files
from secede.erasure.backend import FederationBackend
from secede.erasure.signing.keys import SERVER, PrivateKey
from secede.erasure.storage.home import Home
from secede.erasure.storage.journal import Journal
from secede.erasure.storage.ledger import Ledger
from secede.erasure.storage.locks import HomeLock, lease_request, lock_home
from secede.erasure.storage.model_registry import ModelRegistry
from secede.erasure.types import format_time, parse_time
from secede.erasure.workflow import consistency
from secede.erasure.workflow.session import ErasureSession
from secede.errors import ConfigError

logger = logging.getLogger(__name__)


class MonotonicClock:
    """A clock that never goes back, whatever the system's does; several threads may ask it."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._last: datetime | None = None

    def not_before(self, *times: datetime | None) -> None:
        """Return nothing earlier than these from now on."""
        with self._lock:
            self._last = max((at for at in (self._last, *times) if at is not None), default=None)

    def __call__(self) -> datetime:
        """Return the time, or the last time that was known if the clock is behind it."""
        self.not_before(self._clock())
        assert self._last is not None  # the clock's own time at least
        return self._last


_MAX_AHEAD = timedelta(minutes=5)  # of the clock, that times in the records may be


@contextmanager
def open_session(
    home: Home,
    backend: FederationBackend,
    number: int,
    key: PrivateKey,
    clock: Callable[[], datetime],
    *,
    held: HomeLock | None = None,
) -> Iterator[ErasureSession]:
    """Lock the home, lease the request, check the records and complete the ledger.

    `held` is the home's lock where the caller has it already.
    """
    if key.public_key.keyid != home.keyring()[SERVER].keyid:
        raise ConfigError(f"the server's key does not belong to {home.keys / SERVER}.pub")
    home.check_journal()
    steady_clock = MonotonicClock(clock)
    with (
        files.private(),
        lock_home(home) if held is None else nullcontext(held) as lock,
        Journal(home.journal) as journal,
        Ledger(home.ledger) as ledger,
        ModelRegistry(home.registry) as registry,
    ):
        consistency.check_home(home, journal, ledger, registry)
        changed = (parse_time(model.changed) for model in registry.models())
        steady_clock.not_before(journal.last_time(number), ledger.last_time(), *changed)
        with lease_request(lock, journal, number, steady_clock) as holder:
            session = ErasureSession(
                home=home,
                backend=backend,
                journal=journal,
                ledger=ledger,
                registry=registry,
                key=key,
                holder=holder,
                clock=steady_clock,
                number=number,
            )
            _warn(home, clock(), steady_clock())
            home.remove_parts()
            session.complete_ledger()
            yield session


def _warn(home: Home, clock_time: datetime, time: datetime) -> None:
    """Warn of a clock that is behind, and of files that others may write."""
    if time - clock_time > _MAX_AHEAD:
        logger.warning(
            f"the clock says {format_time(clock_time)}, but the records already have "
            f"{format_time(time)}: new times stay there until the clock has caught up; set it right"
        )
    for path in (home.path, home.journal, home.ledger, home.registry):
        if path.stat().st_mode & 0o022:
            logger.warning(f"{path} can be written by others than its owner: run chmod go-w on it")
