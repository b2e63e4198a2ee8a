"""Who works in a home: one process at a time, named to whoever comes second.

A lock of the file system, which ends with its process, and the journal's lease, which also counts
for those who reach the journal from another machine. A killed process leaves its lease behind; who
gets the lock on the same machine knows that it is dead and gives its lease back. While a process
works, its lease is renewed from beside, however long a round takes.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from secede.erasure.storage.journal import Journal
from secede.erasure.storage.journal_entries import Holder
from secede.erasure.types import format_time
from secede.errors import RecordError, StorageError

SECONDS = 600  # that a lease lasts; every transition renews it
_LENGTH = 1024  # of the lock's file, written in one piece: a kill leaves the old or the new
BEAT = SECONDS / 4  # seconds between renewals while a transition is worked on


@dataclass(frozen=True)
class _Worker:
    """Who leased a request last."""

    host: str
    pid: int
    token: str
    request: int


@dataclass(frozen=True)
class Lock:
    """A home's lock, held by this process."""

    descriptor: int
    path: Path

    def last(self) -> _Worker | None:
        """Return who the lock's file names; None if it is new, or was being written."""
        try:
            found = json.loads(os.pread(self.descriptor, 4096, 0))
            return _Worker(
                str(found["host"]), int(found["pid"]), str(found["token"]), int(found["request"])
            )
        except (ValueError, KeyError, TypeError):
            return None

    def begin(self, doing: str) -> None:
        """Write down what it is held for; who leased a request last stays known."""
        last = self.last()
        self._write({**(asdict(last) if last else {}), "by": os.getpid(), "doing": doing})

    def doing(self) -> str | None:
        """Return who holds it, and for what; None where it is held for a leased request."""
        try:
            found = json.loads(os.pread(self.descriptor, 4096, 0))
            return f"process {int(found['by'])} ({str(found['doing'])[:80]})"
        except (ValueError, KeyError, TypeError):
            return None

    def name(self, worker: _Worker) -> None:
        """Write down who holds it."""
        self._write(asdict(worker))

    def _write(self, content: Mapping[str, object]) -> None:
        try:
            os.pwrite(self.descriptor, json.dumps(content).encode().ljust(_LENGTH), 0)
        except OSError as error:
            raise StorageError(f"cannot write {self.path}: {error.strerror}") from error


class BusyError(RecordError):
    """A home in which another process works."""

    def __init__(self, folder: Path, who: str) -> None:
        super().__init__(
            f"{folder} is worked on by {who}: wait until it is done; if that process is killed, "
            "the next one goes on at once"
        )
        self.who = who


@contextmanager
def locked(folder: Path, journal: Path, *, doing: str = "an erasure") -> Iterator[Lock]:
    """Hold the home; BusyError names the process that has it, and until when its lease lasts."""
    path = folder / "erasing.lock"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}") from error
    lock = Lock(descriptor, path)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError(folder, lock.doing() or _words(lock.last(), journal)) from None
        lock.begin(doing)
        yield lock
    finally:
        os.close(descriptor)


@contextmanager
def leased(
    lock: Lock, journal: Journal, number: int, clock: Callable[[], datetime]
) -> Iterator[Holder]:
    """Lease request `number` for as long as the block lasts."""
    holder, host = Holder(), machine()
    # In this order no kill leaves a lease that the lock's file does not name.
    before = lock.last()
    if before is not None and before.host == host:  # it would have the lock if it lived
        journal.release(before.request, Holder(before.pid, before.token))
    lock.name(_Worker(host, holder.pid, holder.token, number))
    journal.lease(number, holder, clock(), SECONDS)
    ended = threading.Event()
    beating = threading.Thread(
        target=_beat, args=(ended, journal.path, number, holder, clock), daemon=True
    )
    beating.start()
    try:
        yield holder
    finally:
        ended.set()
        beating.join()
        journal.release(number, holder)


def machine() -> str:
    """Return this machine's name and what tells its kernel from others': containers share names."""
    try:
        kernel = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        kernel = ""
    return f"{socket.gethostname()} {kernel}".strip()


def _beat(
    ended: threading.Event,
    path: Path,
    number: int,
    holder: Holder,
    clock: Callable[[], datetime],
) -> None:
    """Renew the lease until the work has ended, or another holder has the request."""
    while not ended.wait(BEAT):
        try:
            with Journal(path) as journal:  # a connection belongs to its thread
                journal.renew(number, holder, clock(), SECONDS)
        except RecordError:
            return  # lost: whoever works finds the same before it does anything for good
        except StorageError:
            continue  # a full disk, or busy: the lease lasts for three more attempts


def _words(found: _Worker | None, path: Path) -> str:
    if found is None:
        return "another process"
    with Journal(path, read_only=True) as journal:
        until = journal.leased_until(found.request)
    lease = f", lease until {format_time(until)}" if until else ""
    host = found.host.partition(" ")[0]
    return f"process {found.pid} on {host} (request {found.request}{lease})"
