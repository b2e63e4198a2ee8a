"""Rules of the journal: which requests, transitions, extensions and leases are refused."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta

from secede.erasure.documents.request import MAX_FURTHER_MONTHS, Request, due_date
from secede.erasure.storage.journal_entries import Entry, Holder, Lease, find_lease
from secede.erasure.types import format_time, parse_time
from secede.errors import ConfigError, RecordError, RequestError
from secede.text import plural

QUOTA = 3  # requests of a client within QUOTA_PERIOD
QUOTA_PERIOD = timedelta(days=30)
_REASON_LENGTH = 300

# For each state those that may follow it; a request is closed where none can.
Allowed = Mapping[str, Collection[str]]


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
    model is verified, since the receipt is then made out with the date that there is.
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
        "SELECT received FROM requests WHERE client = ? AND received > ? ORDER BY received",
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
