"""Which genuine requests are refused all the same: replayed, a second one, one too many."""

from __future__ import annotations

import sqlite3
from datetime import datetime, timedelta

from secede.erasure.documents.request import MAX_FURTHER_MONTHS, Request, due_date
from secede.erasure.storage import journal_entries
from secede.erasure.storage.journal_entries import Entry, Holder, Lease, sound_moment
from secede.erasure.types import check_name, format_time, parse_time
from secede.errors import ConfigError, RecordError, RequestError

QUOTA = 3  # requests of a client within PERIOD
PERIOD = timedelta(days=30)


def check_admission(
    connection: sqlite3.Connection, request: Request, now: datetime, quota: int
) -> None:
    """Raise unless the journal has room for this new request of its client."""
    client = request.client
    # A nonce is its client's own: otherwise whoever sees a request first could block it.
    if connection.execute(
        "SELECT 1 FROM requests WHERE client = ? AND nonce = ?", (client, request.nonce)
    ).fetchone():
        raise RequestError(
            f"the request of {client!r} repeats the nonce of an earlier one: sign a new request"
        )
    second = connection.execute(
        "SELECT id, due FROM requests WHERE client = ? AND status = 'open'", (client,)
    ).fetchone()
    if second:
        raise RequestError(
            f"{client!r} has an open request already: {second[0]}, due {second[1]}; "
            "one at a time is worked on"
        )
    _check_quota(connection, client, now, quota)


def _check_quota(connection: sqlite3.Connection, client: str, now: datetime, quota: int) -> None:
    own = connection.execute("SELECT most FROM quotas WHERE client = ?", (client,)).fetchone()
    most = own[0] if own else quota
    recent = connection.execute(
        "SELECT received FROM requests WHERE client = ? AND received > ? ORDER BY received",
        (client, format_time(now - PERIOD)),
    ).fetchall()
    if len(recent) < most:
        return
    told = f"{client!r} made {len(recent)} requests within {PERIOD.days} days, at most {most} pass"
    if most:
        told += f"; the next one can come at {format_time(parse_time(recent[-most][0]) + PERIOD)}"
    raise RequestError(told)


_REASON_LENGTH = 300


def check_reason(reason: str, what: str) -> str:
    """Return a reason that fits into one line of the journal."""
    if not reason.strip() or len(reason) > _REASON_LENGTH or not reason.isprintable():
        raise ConfigError(f"{what} needs a reason of 1 to {_REASON_LENGTH} characters in one line")
    return reason


def acknowledge(connection: sqlite3.Connection, number: int, now: datetime) -> Entry:
    """Note that an acknowledgement was made out for the client; the first time counts."""
    entry = journal_entries.of(connection, number)
    connection.execute(
        "UPDATE requests SET acknowledged = ? WHERE id = ? AND acknowledged IS NULL",
        (format_time(max(now, entry.received)), number),
    )
    return journal_entries.of(connection, number)


def extend(
    connection: sqlite3.Connection, number: int, months: int, reason: str, now: datetime
) -> Entry:
    """Put the due date off to `months` (1 or 2) beyond the first month, and say why.

    The client must hear of it within the first month, so later it is refused; and once the erased
    model is verified, since the receipt is then made out with the date that there is.
    """
    most = MAX_FURTHER_MONTHS
    if not 1 <= months <= most:
        raise ConfigError(f"{months} further months are not possible, expected 1 to {most}")
    check_reason(reason, "extending")
    entry = journal_entries.of(connection, number)
    first = due_date(entry.received)
    if not entry.open:
        raise RequestError(f"request {number} is closed: nothing is due any more")
    if entry.state == "verified":  # the receipt names the date, and may be on its way
        raise RequestError(f"request {number} is being completed: nothing is left to put off")
    if now > first:
        raise RequestError(
            f"request {number} could be extended until {format_time(first)}, it is "
            f"{format_time(now)}"
        )
    if months <= entry.extended:
        raise RequestError(f"request {number} is extended by {entry.extended} already")
    connection.execute(
        "UPDATE requests SET due = ?, extended = ?, reason = ? WHERE id = ?",
        (format_time(due_date(entry.received, months)), months, reason, number),
    )
    return journal_entries.of(connection, number)


def set_quota(connection: sqlite3.Connection, client: str, most: int) -> None:
    """Allow a client this many requests in 30 days, whatever holds for the others."""
    if most < 0:
        raise ConfigError(f"a quota is 0 or more, got {most}")
    connection.execute(
        "INSERT INTO quotas VALUES (?, ?) ON CONFLICT (client) DO UPDATE SET most = excluded.most",
        (check_name(client, "client"), most),
    )


def acquire_lease(
    connection: sqlite3.Connection, number: int, holder: Holder, now: datetime, seconds: int
) -> Lease:
    """Give `holder` the request for some seconds, or longer if it has it already."""
    if seconds < 1:
        raise ConfigError(f"a lease lasts at least 1 second, got {seconds}")
    held = _lease_held(connection, number)
    if held and held[1] != holder.token and sound_moment(number, held[2]) > now:
        raise RecordError(
            f"request {number} is leased by process {held[0]} until {held[2]}: "
            "wait; if that process is gone, the lease lapses then by itself"
        )
    lease_end = format_time(now + timedelta(seconds=seconds))
    connection.execute(
        "INSERT OR REPLACE INTO leases VALUES (?, ?, ?, ?)",
        (number, holder.pid, holder.token, lease_end),
    )
    return Lease(number, holder, parse_time(lease_end))


def renew_lease(
    connection: sqlite3.Connection, number: int, holder: Holder, now: datetime, seconds: int
) -> Lease:
    """Let `holder` keep a request that it still has; once anybody else had it, that is over."""
    check_lease(connection, number, holder)
    return acquire_lease(connection, number, holder, now, seconds)


def release_lease(connection: sqlite3.Connection, number: int, holder: Holder) -> None:
    """Let the request go; nothing happens if another holder has it by now."""
    connection.execute("DELETE FROM leases WHERE request = ? AND token = ?", (number, holder.token))


def check_lease(connection: sqlite3.Connection, number: int, holder: Holder) -> None:
    """Raise unless `holder` was the last to lease the request, be it lapsed or not."""
    held = _lease_held(connection, number)
    if held is None:
        raise RecordError(
            f"request {number} is leased by nobody: process {holder.pid} never had it, or another "
            "one took it over since and gave it back; lease it first"
        )
    if held[1] != holder.token:
        raise RecordError(
            f"request {number} is leased by process {held[0]} until {held[2]}, "
            f"not by process {holder.pid} any more"
        )


def lease_end(connection: sqlite3.Connection, number: int) -> datetime | None:
    """Return until when the request is leased; None if nobody has it."""
    held = _lease_held(connection, number)
    return None if held is None else sound_moment(number, held[2])


def _lease_held(connection: sqlite3.Connection, number: int) -> tuple[int, str, str] | None:
    found: tuple[int, str, str] | None = connection.execute(
        "SELECT pid, token, until FROM leases WHERE request = ?", (number,)
    ).fetchone()
    return found
