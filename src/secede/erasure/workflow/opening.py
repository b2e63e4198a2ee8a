"""Opens the desk for a request: one process at a time, a whole ledger, a clock that is not behind.

The ledger is verified before anything is appended, against the head that the journal keeps and
those that receipts name, and what journal, registry and receipts tell is held against it; where
they differ nothing is worked on.
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


_AHEAD = timedelta(minutes=5)  # of the clock that what is written down may be


@contextmanager
def open_session(
    home: Home,
    ground: FederationBackend,
    number: int,
    key: PrivateKey,
    clock: Callable[[], datetime],
    *,
    held: HomeLock | None = None,
) -> Iterator[ErasureSession]:
    """Hold the home and the request; the ledger is whole, and caught up with the journal.

    `held` is the home's lock where the caller has it already.
    """
    if key.public_key.keyid != home.keyring()[SERVER].keyid:
        raise ConfigError(f"the server's key does not belong to {home.keys / SERVER}.pub")
    home.check_journal()
    steady = MonotonicClock(clock)
    with (
        files.private(),
        lock_home(home) if held is None else nullcontext(held) as lock,
        Journal(home.journal) as journal,
        Ledger(home.ledger) as ledger,
        ModelRegistry(home.registry) as registry,
    ):
        consistency.check(home, journal, ledger, registry)
        changed = (parse_time(model.changed) for model in registry.models())
        steady.not_before(journal.last_time(number), ledger.last_time(), *changed)
        with lease_request(lock, journal, number, steady) as holder:
            desk = ErasureSession(
                home=home,
                ground=ground,
                journal=journal,
                ledger=ledger,
                registry=registry,
                key=key,
                holder=holder,
                clock=steady,
                number=number,
            )
            _warn(home, clock(), steady())
            home.sweep()
            desk.catch_up()
            yield desk


def _warn(home: Home, clock: datetime, steady: datetime) -> None:
    """Tell what lets the work go on and should be looked at all the same."""
    if steady - clock > _AHEAD:
        logger.info(
            f"the clock says {format_time(clock)}, but {format_time(steady)} is written "
            "down already: stamps "
            "stay there until the clock has caught up; look at it"
        )
    for path in (home.path, home.journal, home.ledger, home.registry):
        if path.stat().st_mode & 0o022:
            logger.info(
                f"{path} can be written by others than its owner: take that away (chmod go-w)"
            )
