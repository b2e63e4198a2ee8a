"""Who works on a request: one holder at a time, for some seconds, named to whoever comes second."""

from __future__ import annotations

import sqlite3
from datetime import datetime, timedelta

from secede.erasure.storage.journal_entries import Holder, Lease, sound_moment
from secede.erasure.types import moment, stamp
from secede.errors import ConfigError, RecordError


def take(
    connection: sqlite3.Connection, number: int, holder: Holder, now: datetime, seconds: int
) -> Lease:
    """Give `holder` the request for some seconds, or longer if it has it already."""
    if seconds < 1:
        raise ConfigError(f"a lease lasts at least 1 second, got {seconds}")
    held = _held(connection, number)
    if held and held[1] != holder.token and sound_moment(number, held[2]) > now:
        raise RecordError(
            f"request {number} is worked on by process {held[0]} until {held[2]}: "
            "wait; if that process is gone, the lease lapses then by itself"
        )
    until = stamp(now + timedelta(seconds=seconds))
    connection.execute(
        "INSERT OR REPLACE INTO leases VALUES (?, ?, ?, ?)",
        (number, holder.pid, holder.token, until),
    )
    return Lease(number, holder, moment(until))


def renew(
    connection: sqlite3.Connection, number: int, holder: Holder, now: datetime, seconds: int
) -> Lease:
    """Let `holder` keep a request that it still has; once anybody else had it, that is over."""
    check(connection, number, holder)
    return take(connection, number, holder, now, seconds)


def give_back(connection: sqlite3.Connection, number: int, holder: Holder) -> None:
    """Let the request go; nothing happens if another holder has it by now."""
    connection.execute("DELETE FROM leases WHERE request = ? AND token = ?", (number, holder.token))


def check(connection: sqlite3.Connection, number: int, holder: Holder) -> None:
    """Raise unless `holder` was the last to lease the request, be it lapsed or not."""
    held = _held(connection, number)
    if held is None:
        raise RecordError(
            f"request {number} is leased by nobody: process {holder.pid} never had it, or another "
            "one took it over since and gave it back; lease it first"
        )
    if held[1] != holder.token:
        raise RecordError(
            f"request {number} is worked on by process {held[0]} until {held[2]}, "
            f"not by process {holder.pid} any more"
        )


def until(connection: sqlite3.Connection, number: int) -> datetime | None:
    """Return until when the request is leased; None if nobody has it."""
    held = _held(connection, number)
    return None if held is None else sound_moment(number, held[2])


def _held(connection: sqlite3.Connection, number: int) -> tuple[int, str, str] | None:
    found: tuple[int, str, str] | None = connection.execute(
        "SELECT pid, token, until FROM leases WHERE request = ?", (number,)
    ).fetchone()
    return found
