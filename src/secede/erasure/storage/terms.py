"""What the server may still change about a request it took: acknowledged, put off, quotas."""

from __future__ import annotations

import sqlite3
from datetime import datetime

from secede.erasure.documents import deadline
from secede.erasure.signing.keys import check_name
from secede.erasure.storage import journal_entries
from secede.erasure.storage.journal_entries import Entry
from secede.erasure.types import stamp
from secede.errors import ConfigError, RequestError

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
        (stamp(max(now, entry.received)), number),
    )
    return journal_entries.of(connection, number)


def extend(
    connection: sqlite3.Connection, number: int, months: int, reason: str, now: datetime
) -> Entry:
    """Put the due date off to `months` (1 or 2) beyond the first month, and say why.

    The client must hear of it within the first month, so later it is refused; and once the erased
    model is verified, since the receipt is then made out with the date that there is.
    """
    most = deadline.MOST_FURTHER_MONTHS
    if not 1 <= months <= most:
        raise ConfigError(f"{months} further months are not possible, expected 1 to {most}")
    check_reason(reason, "extending")
    entry = journal_entries.of(connection, number)
    first = deadline.due(entry.received)
    if not entry.open:
        raise RequestError(f"request {number} is closed: nothing is due any more")
    if entry.state == "verified":  # the receipt names the date, and may be on its way
        raise RequestError(f"request {number} is being completed: nothing is left to put off")
    if now > first:
        raise RequestError(
            f"request {number} could be extended until {stamp(first)}, it is {stamp(now)}"
        )
    if months <= entry.extended:
        raise RequestError(f"request {number} is extended by {entry.extended} already")
    connection.execute(
        "UPDATE requests SET due = ?, extended = ?, reason = ? WHERE id = ?",
        (stamp(deadline.due(entry.received, months)), months, reason, number),
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
