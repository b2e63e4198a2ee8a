"""Which genuine requests are refused all the same: replayed, a second one, one too many."""

from __future__ import annotations

import sqlite3
from datetime import datetime, timedelta

from secede.erasure.documents.request import Request
from secede.erasure.types import moment, stamp
from secede.errors import RequestError

QUOTA = 3  # requests of a client within PERIOD
PERIOD = timedelta(days=30)


def check(connection: sqlite3.Connection, request: Request, now: datetime, quota: int) -> None:
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
        (client, stamp(now - PERIOD)),
    ).fetchall()
    if len(recent) < most:
        return
    told = f"{client!r} made {len(recent)} requests within {PERIOD.days} days, at most {most} pass"
    if most:
        told += f"; the next one can come at {stamp(moment(recent[-most][0]) + PERIOD)}"
    raise RequestError(told)
