"""What the journal tells: a request's dates and state, its transitions, who works on it."""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from secede.erasure.documents.request import days_left
from secede.erasure.types import check_name, parse_time
from secede.errors import RecordError, RequestError, SecedeError

COLUMNS = """id, client, digest, received, acknowledged, due, extended, reason, status,
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
class Listed:
    """A request and how many days are left for it; None if it is closed."""

    entry: Entry
    days_left: int | None


@dataclass(frozen=True)
class Accepted:
    """The request is new and has been written down."""

    entry: Entry


@dataclass(frozen=True)
class AlreadyAccepted:
    """The very same request came before; nothing was changed."""

    entry: Entry


@dataclass(frozen=True, kw_only=True)
class TransitionRow:
    """A transition as it is stored; `transition_details.py` checks its details."""

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


def read(row: tuple[Any, ...]) -> Entry:
    """Return a row of `COLUMNS` as an entry."""
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
        raise damaged(row[0]) from error


def of(connection: sqlite3.Connection, number: int) -> Entry:
    """Return a request's entry."""
    row = connection.execute(f"SELECT {COLUMNS} FROM requests WHERE id = ?", (number,)).fetchone()
    if row is None:
        raise unknown(number)
    return read(row)


def unknown(number: int) -> RequestError:
    """Return the error for a request that is not there."""
    return RequestError(f"no request {number} in the journal: see secede requests")


def sound_moment(number: int, text: str) -> datetime:
    """Return the time that a row of request `number` says."""
    try:
        return parse_time(text)
    except (ValueError, TypeError) as error:
        raise damaged(number) from error


def damaged(number: object) -> RecordError:
    """Return the error for a row that cannot have been written so."""
    return RecordError(f"the journal is damaged at request {number}: restore it from a backup")
