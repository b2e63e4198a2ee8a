"""A request's way from state to state: numbered rows that are only ever added."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from secede.erasure.canonical_json import canonical, parse
from secede.erasure.signing.keys import check_name
from secede.erasure.storage.journal_entries import Transition, damaged, sound_moment
from secede.erasure.types import moment, stamp
from secede.errors import ConfigError, RecordError, SecedeError

RECEIVED = "received"  # every request's first state
_DETAILS_BYTES = 8 << 20  # four counts for each of 100,000 classes are the most there is

# For each state those that may follow it; a request is closed where none can.
Allowed = Mapping[str, Collection[str]]


def begin(connection: sqlite3.Connection, number: int, now: datetime) -> None:
    """Write the first transition of a new request."""
    _insert(connection, number, 0, RECEIVED, now, b"{}")


def add(
    connection: sqlite3.Connection,
    number: int,
    state: str,
    details: Mapping[str, Any],
    now: datetime,
    allowed: Allowed,
) -> Transition:
    """Write the next transition if it is allowed after the last one.

    It is stamped no earlier than that one, whatever the clock says.
    """
    check_name(state, "state")
    if state not in allowed:
        raise ConfigError(f"no state {state!r}: expected one of {', '.join(sorted(allowed))}")
    content = canonical(dict(details))
    if len(content) > _DETAILS_BYTES:
        raise ConfigError(f"details of {len(content):,} bytes, at most {_DETAILS_BYTES:,} are kept")
    last, before, at = connection.execute(
        "SELECT number, state, at FROM transitions WHERE request = ? ORDER BY number DESC LIMIT 1",
        (number,),
    ).fetchone()
    now = max(now, sound_moment(number, at))
    following = allowed.get(before, ())
    if state not in following:
        raise RecordError(
            f"request {number} is {before!r} and cannot become {state!r}: "
            f"expected {' or '.join(sorted(following)) or 'nothing, it is closed'}"
        )
    _insert(connection, number, last + 1, state, now, content)
    return Transition(
        request=number,
        number=last + 1,
        state=state,
        at=moment(stamp(now)),
        details=parse(content, _DETAILS_BYTES),
    )


def of(connection: sqlite3.Connection, number: int) -> list[Transition]:
    """Return a request's transitions in order; none if it is unknown."""
    rows = connection.execute(
        "SELECT number, state, at, details FROM transitions WHERE request = ? ORDER BY number",
        (number,),
    ).fetchall()
    if [row[0] for row in rows] != list(range(len(rows))):
        raise damaged(number)
    try:
        return [
            Transition(
                request=number,
                number=place,
                state=check_name(state),
                at=moment(at),
                details=parse(details.encode(), _DETAILS_BYTES),
            )
            for place, state, at, details in rows
        ]
    except (SecedeError, ValueError, TypeError, AttributeError) as error:
        raise damaged(number) from error


def _insert(
    connection: sqlite3.Connection,
    number: int,
    place: int,
    state: str,
    now: datetime,
    content: bytes,
) -> None:
    connection.execute(
        "INSERT INTO transitions VALUES (?, ?, ?, ?, ?)",
        (number, place, state, stamp(now), content.decode()),
    )
