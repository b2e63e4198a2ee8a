"""Rows of the journal as objects, and its rules: what is refused before a row is written."""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from secede.erasure.canonical_json import parse_json
from secede.erasure.documents import MAX_FURTHER_MONTHS, Request, days_left, due_date
from secede.erasure.types import check_name, format_time, parse_time
from secede.errors import ConfigError, RecordError, RequestError, SecedeError
from secede.text import plural

DETAILS_BYTES = 8 << 20  # four counts for each of 100,000 classes are the most there is
ENTRY_COLUMNS = """id, client, digest, received, acknowledged, due, extended, reason, status,
    (SELECT state FROM transitions WHERE request = id ORDER BY number DESC LIMIT 1)"""

QUOTA = 3  # requests of a client within QUOTA_PERIOD, those that the server ended not counted
QUOTA_PERIOD = timedelta(days=30)
_REASON_LENGTH = 300
# Ended by the server without an erasure: that must not keep a client from asking again.
_BY_SERVER = """EXISTS (SELECT 1 FROM transitions WHERE request = id
    AND state IN ('refused', 'rolled-back') AND json_extract(details, '$.withdrawn') IS NOT 1)"""

# For each state those that may follow it; a request is closed where none can.
Allowed = Mapping[str, Collection[str]]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A request that was accepted."""

    id: int
    client: str
    digest: str
    received: datetime
    acknowledged: datetime | None
    due: datetime
    extended: int  # further months
    reason: str | None  # for extending
    open: bool
    state: str  # of its last transition

    def days_left(self, now: datetime) -> int | None:
        """Return the whole days until it is due, negative once overdue; None if it is closed."""
        return days_left(self.due, now) if self.open else None


@dataclass(frozen=True)
class Accepted:
    """A new request that was written down."""

    entry: Entry


@dataclass(frozen=True)
class AlreadyAccepted:
    """The very same request came before; nothing was changed."""

    entry: Entry


@dataclass(frozen=True, kw_only=True)
class TransitionRow:
    """A transition as it is stored, numbered from 0; `transition_details.py` checks its details."""

    request: int
    number: int
    state: str
    at: datetime
    details: Mapping[str, Any]


@dataclass(frozen=True)
class Holder:
    """A process that works on a request; the token tells it from all others."""

    pid: int = field(default_factory=os.getpid)
    token: str = field(default_factory=lambda: secrets.token_hex(16), repr=False)


@dataclass(frozen=True)
class Lease:
    """The right to append to a request until some time; the same holder may renew it."""

    request: int
    holder: Holder
    until: datetime


def find_entry(connection: sqlite3.Connection, number: int) -> Entry:
    """Return the entry of a request."""
    query = f"SELECT {ENTRY_COLUMNS} FROM requests WHERE id = ?"
    row = connection.execute(query, (number,)).fetchone()
    if row is None:
        raise unknown_request(number)
    return parse_entry(row)


def parse_entry(row: tuple[Any, ...]) -> Entry:
    """Return a row of `ENTRY_COLUMNS` as an entry."""
    try:
        return Entry(
            id=int(row[0]),
            client=check_name(row[1]),
            digest=str(row[2]),
            received=parse_time(row[3]),
            acknowledged=None if row[4] is None else parse_time(row[4]),
            due=parse_time(row[5]),
            extended=int(row[6]),
            reason=row[7],
            open=row[8] == "open",
            state=check_name(row[9]),
        )
    except (SecedeError, ValueError, TypeError) as error:
        raise damaged_request(row[0]) from error


def find_transitions(connection: sqlite3.Connection, number: int) -> list[TransitionRow]:
    """Return the transitions of a request in order; none if it is unknown."""
    rows = connection.execute(
        "SELECT number, state, at, details FROM transitions WHERE request = ? ORDER BY number",
        (number,),
    ).fetchall()
    if [row[0] for row in rows] != list(range(len(rows))):
        raise damaged_request(number)
    try:
        return [
            TransitionRow(
                request=number,
                number=place,
                state=check_name(state),
                at=parse_time(at),
                details=parse_json(details.encode(), DETAILS_BYTES),
            )
            for place, state, at, details in rows
        ]
    except (SecedeError, ValueError, TypeError, AttributeError) as error:
        raise damaged_request(number) from error


def find_lease(connection: sqlite3.Connection, number: int) -> Lease | None:
    """Return the last lease of a request, be it lapsed or not; None if nobody has it."""
    query = "SELECT pid, token, until FROM leases WHERE request = ?"
    row = connection.execute(query, (number,)).fetchone()
    if row is None:
        return None
    return Lease(number, Holder(row[0], row[1]), parse_row_time(number, row[2]))


def parse_row_time(number: int, text: str) -> datetime:
    """Return the time in a row of request `number`."""
    try:
        return parse_time(text)
    except (ValueError, TypeError) as error:
        raise damaged_request(number) from error


def unknown_request(number: int) -> RequestError:
    """Return the error for a request that is not there."""
    return RequestError(f"no request {number} in the journal: see secede requests")


def damaged_request(number: object) -> RecordError:
    """Return the error for a row that cannot have been written so."""
    return RecordError(f"the journal is damaged at request {number}: restore it from a backup")


def check_admission(
    connection: sqlite3.Connection, request: Request, now: datetime, quota: int
) -> None:
    """Raise if a new request is a replay, its client's second open one, or one too many."""
    client = request.client
    # A nonce is its client's own: otherwise whoever sees a request first could block it.
    if connection.execute(
        "SELECT 1 FROM requests WHERE client = ? AND nonce = ?", (client, request.nonce)
    ).fetchone():
        raise RequestError(
            f"the request of {client!r} repeats the nonce of an earlier one: sign a new request"
        )
    open_request = connection.execute(
        "SELECT id, due FROM requests WHERE client = ? AND status = 'open'", (client,)
    ).fetchone()
    if open_request:
        raise RequestError(
            f"{client!r} already has the open request {open_request[0]}, due {open_request[1]}: "
            "a client may have one at a time"
        )
    _check_quota(connection, client, now, quota)


def check_reason(reason: str, purpose: str) -> str:
    """Return a reason that fits into one line of the journal."""
    if not reason.strip() or len(reason) > _REASON_LENGTH or not reason.isprintable():
        raise ConfigError(
            f"{purpose} needs a reason of 1 to {_REASON_LENGTH} characters in one line"
        )
    return reason


def check_extension(entry: Entry, months: int, reason: str, now: datetime) -> None:
    """Raise unless the due date of a request may be put off by `months`.

    The client must hear of it within the first month, so later it is refused; and once the erased
    model is verified, since the receipt is then issued with the current due date.
    """
    if not 1 <= months <= MAX_FURTHER_MONTHS:
        raise ConfigError(
            f"{months} further months are not possible, expected 1 to {MAX_FURTHER_MONTHS}"
        )
    check_reason(reason, "extending")
    first_due = due_date(entry.received)
    if not entry.open:
        raise RequestError(f"request {entry.id} is closed: its due date no longer counts")
    if entry.state == "verified":  # the receipt names the date, and may be on its way
        raise RequestError(f"request {entry.id} is being completed: its due date is final")
    if now > first_due:
        raise RequestError(
            f"request {entry.id} could be extended until {format_time(first_due)}, it is "
            f"{format_time(now)}"
        )
    if months <= entry.extended:
        raise RequestError(
            f"request {entry.id} is already extended by {plural(entry.extended, 'month')}"
        )


def check_transition(number: int, state: str, new_state: str, allowed: Allowed) -> None:
    """Raise unless `new_state` may follow `state`."""
    if new_state not in allowed:
        raise ConfigError(f"no state {new_state!r}: expected one of {', '.join(sorted(allowed))}")
    following = allowed.get(state, ())
    if new_state not in following:
        raise RecordError(
            f"request {number} is {state!r} and cannot become {new_state!r}: "
            f"expected {' or '.join(sorted(following)) or 'no state, it is closed'}"
        )


def check_lease(connection: sqlite3.Connection, number: int, holder: Holder) -> None:
    """Raise unless `holder` was the last to lease the request, be it lapsed or not."""
    lease = find_lease(connection, number)
    if lease is None:
        raise RecordError(
            f"request {number} is not leased: process {holder.pid} never had it, or another one "
            "took it over since and gave it back; lease it first"
        )
    if lease.holder.token != holder.token:
        raise RecordError(
            f"request {number} is leased by {_describe(lease)}, not by process {holder.pid} any "
            "more"
        )


def check_free(connection: sqlite3.Connection, number: int, holder: Holder, now: datetime) -> None:
    """Raise if another holder's lease of the request has not lapsed."""
    lease = find_lease(connection, number)
    if lease is not None and lease.holder.token != holder.token and lease.until > now:
        raise RecordError(
            f"request {number} is leased by {_describe(lease)}: wait; if that process is gone, "
            "the lease lapses then by itself"
        )


def _check_quota(connection: sqlite3.Connection, client: str, now: datetime, quota: int) -> None:
    own = connection.execute("SELECT most FROM quotas WHERE client = ?", (client,)).fetchone()
    limit = own[0] if own else quota
    recent = connection.execute(
        f"SELECT received FROM requests WHERE client = ? AND received > ? AND NOT {_BY_SERVER} "
        "ORDER BY received",
        (client, format_time(now - QUOTA_PERIOD)),
    ).fetchall()
    if len(recent) < limit:
        return
    message = (
        f"{client!r} made {plural(len(recent), 'request')} within {QUOTA_PERIOD.days} days, "
        f"the limit is {limit}"
    )
    if limit:
        next_time = parse_time(recent[-limit][0]) + QUOTA_PERIOD
        message += f"; the next one can come at {format_time(next_time)}"
    raise RequestError(message)


def _describe(lease: Lease) -> str:
    return f"process {lease.holder.pid} until {format_time(lease.until)}"
