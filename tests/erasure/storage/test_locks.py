from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import pytest

from harness.erasure.questions import NOW, later, people
from secede.erasure.storage.home import Home
from secede.erasure.storage.journal import Journal
from secede.erasure.storage.journal_entries import Holder
from secede.erasure.storage.locks import (
    LEASE_SECONDS,
    BusyError,
    lease_request,
    lock_home,
    machine,
)
from secede.errors import RecordError, StorageError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A journal with one request."""
    path = tmp_path / "journal.sqlite"
    who = people(tmp_path / "keys", "north")
    with Journal(path) as journal:
        who.send(journal, who.ask("north"))
    return path


@contextmanager
def hold(path: Path, now: datetime = NOW) -> Iterator[Holder]:
    with (
        lock_home(Home(path.parent)) as lock,
        Journal(path) as journal,
        lease_request(lock, journal, 1, lambda: now) as holder,
    ):
        yield holder


def left_behind(path: Path, host: str) -> None:
    """Leave a lease and a lock's file as a killed process does."""
    dead = Holder(pid=4_000_000, token="ab" * 16)
    with Journal(path) as journal:
        journal.lease(1, dead, NOW, LEASE_SECONDS)
    told = {"host": host, "pid": dead.pid, "token": dead.token, "request": 1}
    (path.parent / "erasing.lock").write_text(json.dumps(told))


def test_the_lease_lasts_as_long_as_the_block(path: Path) -> None:
    with lock_home(Home(path.parent)) as lock, Journal(path) as journal:
        with lease_request(lock, journal, 1, lambda: NOW) as holder:
            assert journal.leased_until(1) == later(seconds=LEASE_SECONDS)
            assert holder.pid == os.getpid()
        assert journal.leased_until(1) is None
    assert (path.parent / "erasing.lock").stat().st_mode & 0o177 == 0


def test_whoever_holds_it_is_named_with_its_own_work_and_not_the_last_request(path: Path) -> None:
    with hold(path):  # request 1 was leased, and given back
        pass
    with (
        lock_home(Home(path.parent), purpose="training"),
        pytest.raises(BusyError, match=r"in use by process \d+ \(training\)"),
        lock_home(Home(path.parent)),
    ):
        pass
    with (
        hold(path),
        pytest.raises(BusyError, match="request 1, lease"),
        lock_home(Home(path.parent)),
    ):
        pass


def test_a_dead_process_that_leased_is_still_known_after_another_kind_of_work(path: Path) -> None:
    left_behind(path, machine())
    with lock_home(Home(path.parent), purpose="training"):  # and leases nothing
        pass
    with hold(path):
        pass


def test_a_dead_process_of_this_machine_does_not_block(path: Path) -> None:
    left_behind(path, machine())
    with hold(path):
        pass


@pytest.mark.parametrize("host", ["elsewhere", socket.gethostname()])  # containers share names
def test_a_lease_of_another_machine_is_waited_for(path: Path, host: str) -> None:
    left_behind(path, host)
    words = r"process 4000000 until 2026-11-15T12:10:00Z"
    with pytest.raises(RecordError, match=words), hold(path):
        pass


def test_after_that_it_is_given_to_the_next(path: Path) -> None:
    left_behind(path, "elsewhere")
    with hold(path, later(seconds=LEASE_SECONDS + 1)):
        pass


def test_a_torn_lock_file_is_no_hindrance(path: Path) -> None:
    for content in (b"", b'{"host": "a", "pi', b"[]", b"\xff\xfe"):
        (path.parent / "erasing.lock").write_bytes(content)
        with hold(path):
            pass


def test_who_lost_a_request_cannot_renew_it_even_if_it_is_free_again(path: Path) -> None:
    other = Holder(pid=4711)
    with hold(path) as holder, Journal(path) as journal:
        journal.renew(1, holder, later(seconds=LEASE_SECONDS - 1), LEASE_SECONDS)
        after = later(seconds=2 * LEASE_SECONDS)
        journal.lease(1, other, after, LEASE_SECONDS)
        with pytest.raises(RecordError, match="not by process"):
            journal.renew(1, holder, after, LEASE_SECONDS)
        journal.release(1, other)
        with pytest.raises(RecordError, match="is not leased"):
            journal.renew(1, holder, after, LEASE_SECONDS)


def test_a_long_round_does_not_lose_the_lease(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secede.erasure.storage.locks.RENEWAL_SECONDS", 0.01)
    now = [NOW]
    with (
        lock_home(Home(path.parent)) as lock,
        Journal(path) as journal,
        lease_request(lock, journal, 1, lambda: now[0]),
    ):
        for minutes in (9, 18, 27):  # each longer after the last than a lease lasts from the first
            now[0] = later(minutes=minutes)
            expected = later(minutes=minutes + LEASE_SECONDS // 60)
            ends = time.monotonic() + 20
            while journal.leased_until(1) != expected:
                assert time.monotonic() < ends, "nobody renewed it"
                time.sleep(0.01)
        with pytest.raises(RecordError, match="leased by"):
            journal.lease(1, Holder(pid=4711), later(minutes=30), LEASE_SECONDS)
    with Journal(path) as journal:
        assert journal.leased_until(1) is None


def test_a_folder_that_is_not_there_is_a_storage_error(tmp_path: Path) -> None:
    with (
        pytest.raises(StorageError, match="cannot write"),
        lock_home(Home(tmp_path / "absent")),
    ):
        pass
