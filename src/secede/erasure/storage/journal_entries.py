"""What the journal holds, as objects: requests, their transitions and their leases."""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from secede.erasure.canonical_json import parse_json
from secede.erasure.documents.request import days_left
from secede.erasure.types import check_name, parse_time
from secede.errors import RecordError, RequestError, SecedeError

DETAILS_BYTES = 8 << 20  # four counts for each of 100,000 classes are the most there is
ENTRY_COLUMNS = """id, client, digest, received, acknowledged, due, extended, reason, status,
    (SELECT state FROM transitions WHERE request = id ORDER BY number DESC LIMIT 1)"""


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
