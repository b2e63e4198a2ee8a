"""The home's lock: one process works in a home, and an error names it to others.

The file lock ends with its process. The journal's lease counts for other machines, too: a killed
process leaves its lease behind, which the next process on the same machine gives back. While a
process works, a thread renews its lease.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from secede import files
from secede.erasure.storage.home import Home
from secede.erasure.storage.journal import Journal
from secede.erasure.storage.journal_entries import Holder
from secede.erasure.types import format_time
from secede.errors import RecordError, StorageError
from secede.waiting import LogAtIntervals, seconds_left

LEASE_SECONDS = 600  # every transition renews the lease
RENEWAL_SECONDS = LEASE_SECONDS / 4  # between renewals while a transition is worked on
_CONTENT_LENGTH = 1024  # written in one piece: a kill leaves the old or the new content

logger = logging.getLogger(__name__)


class _LeaseOwner(BaseModel):
    """The process that leased a request last."""

    host: str
    pid: int
    token: str
    request: int


class _LockOwner(BaseModel):
    """The process that has the lock, and its purpose."""

    by: int
    purpose: str


C = TypeVar("C", bound=BaseModel)


@dataclass(frozen=True)
class HomeLock:
    """The file of a home's lock, which names who has it."""

    path: Path

    def last_owner(self) -> _LeaseOwner | None:
        """Return who leased a request last; None if the file is new or damaged."""
        return self._read(_LeaseOwner)

    def holder(self) -> str | None:
        """Return which process has the lock, and for what; None if it has it for a request."""
        owner = self._read(_LockOwner)
        return f"process {owner.by} ({owner.purpose[:80]})" if owner else None

    def write_purpose(self, purpose: str) -> None:
        """Write down what this process has the lock for; the last lease stays known."""
        last, owner = self.last_owner(), _LockOwner(by=os.getpid(), purpose=purpose)
        self._write({**(last.model_dump() if last else {}), **owner.model_dump()})

    def write_owner(self, owner: _LeaseOwner) -> None:
        """Write down who leases a request."""
        self._write(owner.model_dump())

    def _read(self, kind: type[C]) -> C | None:
        try:
            return kind.model_validate_json(self.path.read_bytes())
        except (OSError, ValidationError):
            return None

    def _write(self, content: Mapping[str, object]) -> None:
        try:
            with self.path.open("r+b", buffering=0) as file:
                file.write(json.dumps(content).encode().ljust(_CONTENT_LENGTH))
        except OSError as error:
            raise StorageError(f"cannot write {self.path}: {error.strerror}") from error


class BusyError(RecordError):
    """A home in which another process works."""

    def __init__(self, folder: Path, holder: str) -> None:
        super().__init__(
            f"{folder} is in use by {holder}: wait until it is done; if that process is killed, "
            "the next one continues at once"
        )
        self.holder = holder


@contextmanager
def lock_home(home: Home, timeout: float = 0, *, purpose: str = "an erasure") -> Iterator[HomeLock]:
    """Lock a home, waiting at most `timeout` seconds; what is made in it is for its owner alone.

    BusyError names the process that has it, and until when its lease lasts.
    """
    log_wait = LogAtIntervals(logger.info)
    with ExitStack() as stack:
        stack.enter_context(files.private())
        for left in seconds_left(timeout, pause=1.0):
            try:
                lock = stack.enter_context(_lock_now(home, purpose))
                break
            except BusyError as error:
                if left <= 0:
                    raise
                log_wait(f"waiting for {error.holder} to end, at most {left:.0f} seconds")
        yield lock


@contextmanager
def lease_request(
    lock: HomeLock, journal: Journal, number: int, clock: Callable[[], datetime]
) -> Iterator[Holder]:
    """Lease request `number` for as long as the block lasts."""
    holder, host = Holder(), machine()
    # In this order no kill leaves a lease that the lock's file does not name.
    last = lock.last_owner()
    if last is not None and last.host == host:  # it would have the lock if it lived
        journal.release(last.request, Holder(last.pid, last.token))
    lock.write_owner(_LeaseOwner(host=host, pid=holder.pid, token=holder.token, request=number))
    journal.lease(number, holder, clock(), LEASE_SECONDS)
    ended = threading.Event()
    renewal = threading.Thread(
        target=_renew_lease, args=(ended, journal.path, number, holder, clock), daemon=True
    )
    renewal.start()
    try:
        yield holder
    finally:
        ended.set()
        renewal.join()
        journal.release(number, holder)


def machine() -> str:
    """Return this machine's name and its kernel's id, which tells containers of one name apart."""
    try:
        kernel = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        kernel = ""
    return f"{socket.gethostname()} {kernel}".strip()


@contextmanager
def _lock_now(home: Home, purpose: str) -> Iterator[HomeLock]:
    path = home.path / "erasing.lock"
    lock = HomeLock(path)
    with ExitStack() as stack:
        try:
            stack.enter_context(files.lock(path, timeout=0, mode=0o600))
        except files.LockedError:
            holder = lock.holder() or _describe(lock.last_owner(), home.journal)
            raise BusyError(home.path, holder) from None
        lock.write_purpose(purpose)
        yield lock


def _renew_lease(
    ended: threading.Event,
    path: Path,
    number: int,
    holder: Holder,
    clock: Callable[[], datetime],
) -> None:
    """Renew the lease until the work has ended, or another holder has the request."""
    while not ended.wait(RENEWAL_SECONDS):
        try:
            with Journal(path) as journal:  # a connection belongs to its thread
                journal.renew(number, holder, clock(), LEASE_SECONDS)
        except RecordError:
            return  # lost: the working thread finds the same before it does anything for good
        except StorageError:
            continue  # a full disk, or busy: the lease lasts for three more attempts


def _describe(owner: _LeaseOwner | None, path: Path) -> str:
    if owner is None or not path.exists():
        return "another process"
    with Journal(path, read_only=True) as journal:
        until = journal.leased_until(owner.request)
    lease = f", lease until {format_time(until)}" if until else ""
    host = owner.host.partition(" ")[0]
    return f"process {owner.pid} on {host} (request {owner.request}{lease})"
