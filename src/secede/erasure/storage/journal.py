"""The journal of requests: accepted once, due in time, every step of their way written down.

One SQLite file. Each call is one transaction, so a kill leaves all of it or nothing. Who appends
holds the request's lease; it lapses by itself, and a holder that lost it can write no more.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from pydantic import ValidationError

from secede.erasure.canonical_json import parse, to_canonical
from secede.erasure.documents.ledger_rows import Head
from secede.erasure.documents.request import (
    Request,
    check_times,
    due_date,
    unverified_request,
    verify_request,
)
from secede.erasure.signing import dsse
from secede.erasure.signing.keys import PublicKey
from secede.erasure.storage import journal_entries, journal_rules, sqlite
from secede.erasure.storage.journal_entries import (
    Accepted,
    AlreadyAccepted,
    Entry,
    Holder,
    Lease,
    Listed,
    TransitionRow,
    damaged,
    sound_moment,
)
from secede.erasure.storage.sqlite import Database, Migration
from secede.erasure.types import check_name, format_time, parse_time
from secede.errors import ConfigError, RecordError, SecedeError

VERSION = 1
MIGRATIONS: Mapping[int, Migration] = {}  # from each version before VERSION to the one after it

SCHEMA = (
    """CREATE TABLE requests (
    id INTEGER PRIMARY KEY,
    client TEXT NOT NULL,
    digest TEXT NOT NULL UNIQUE CHECK (length(digest) = 64),
    nonce TEXT NOT NULL CHECK (length(nonce) = 64),
    envelope BLOB NOT NULL,
    received TEXT NOT NULL CHECK (length(received) = 20),
    acknowledged TEXT CHECK (length(acknowledged) = 20),
    due TEXT NOT NULL CHECK (length(due) = 20),
    extended INTEGER NOT NULL DEFAULT 0 CHECK (extended BETWEEN 0 AND 2),
    reason TEXT CHECK ((reason IS NULL) = (extended = 0)),
    status TEXT NOT NULL CHECK (status IN ('open', 'closed')),
    UNIQUE (client, nonce)
)""",
    "CREATE UNIQUE INDEX one_open_request ON requests (client) WHERE status = 'open'",
    """CREATE TABLE transitions (
    request INTEGER NOT NULL REFERENCES requests (id),
    number INTEGER NOT NULL CHECK (number >= 0),
    state TEXT NOT NULL,
    at TEXT NOT NULL CHECK (length(at) = 20),
    details TEXT NOT NULL,
    UNIQUE (request, number)
)""",
    """CREATE TRIGGER transitions_are_not_changed BEFORE UPDATE ON transitions
BEGIN SELECT RAISE(ABORT, 'transitions are append-only'); END""",
    """CREATE TRIGGER transitions_are_not_deleted BEFORE DELETE ON transitions
BEGIN SELECT RAISE(ABORT, 'transitions are append-only'); END""",
    """CREATE TRIGGER transitions_come_last BEFORE INSERT ON transitions
WHEN NEW.number IS NOT
    (SELECT coalesce(max(number), -1) + 1 FROM transitions WHERE request = NEW.request)
BEGIN SELECT RAISE(ABORT, 'transitions are append-only'); END""",
    """CREATE TABLE leases (
    request INTEGER PRIMARY KEY REFERENCES requests (id),
    pid INTEGER NOT NULL,
    token TEXT NOT NULL CHECK (length(token) = 32),
    until TEXT NOT NULL CHECK (length(until) = 20)
)""",
    """CREATE TABLE ledger (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    number INTEGER NOT NULL CHECK (number >= 0),
    hash TEXT NOT NULL CHECK (length(hash) = 64)
)""",
    """CREATE TABLE quotas (
    client TEXT PRIMARY KEY,
    most INTEGER NOT NULL CHECK (most >= 0)
)""",
)


class Journal:
    """A journal in its SQLite file; several processes may use it at once."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        if not read_only:
            sqlite.prepare_file(path, "journal", SCHEMA, VERSION, MIGRATIONS)
        self.path = path
        self._database = Database(path, "journal", SCHEMA, version=VERSION, read_only=read_only)
        if read_only:
            sqlite.check_content(self._database.connection, path, "journal")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let the file go."""
        self._database.close()

    def accept(
        self,
        data: bytes,
        now: datetime,
        *,
        keyring: Mapping[str, PublicKey],
        federation: str,
        quota: int = journal_rules.QUOTA,
    ) -> Accepted | AlreadyAccepted:
        """Write a signed request down, once however often it comes.

        Every reason to refuse it raises and leaves no trace: TrustError if it is forged or
        changed, RequestError otherwise. `quota` holds for clients that have none of their own.
        """
        request = verify_request(data, keyring, federation=federation)
        with self._database.writing() as connection:
            known = connection.execute(
                "SELECT id FROM requests WHERE digest = ?", (request.digest(),)
            ).fetchone()
            if known:
                return AlreadyAccepted(journal_entries.of(connection, known[0]))
            check_times(request, now)
            journal_rules.check_admission(connection, request, now, quota)
            return Accepted(journal_entries.of(connection, _add(connection, request, data, now)))

    def check_new(self, request: Request, now: datetime) -> None:
        """Raise if a genuine request that is not here yet would be refused now."""
        check_times(request, now)
        with self._database.errors():
            journal_rules.check_admission(
                self._database.connection, request, now, journal_rules.QUOTA
            )

    def entry(self, number: int) -> Entry:
        """Return a request's dates and state."""
        with self._database.errors():
            return journal_entries.of(self._database.connection, number)

    def request(self, number: int) -> Request:
        """Return what the client signed."""
        return self._envelope(number)[0]

    def signed_with(self, number: int) -> frozenset[str]:
        """Return the ids of the keys that a request was signed with."""
        return dsse.key_ids(self._envelope(number)[1])

    def _envelope(self, number: int) -> tuple[Request, bytes]:
        with self._database.errors():
            row = self._database.connection.execute(
                "SELECT envelope, digest FROM requests WHERE id = ?", (number,)
            ).fetchone()
        if row is None:
            raise journal_entries.unknown(number)
        try:
            found = unverified_request(row[0])
        except (SecedeError, TypeError, AttributeError) as error:
            raise journal_entries.damaged(number) from error
        if found.digest() != row[1]:
            raise journal_entries.damaged(number)
        return found, row[0]

    def requests(self, now: datetime) -> list[Listed]:
        """Return all requests in the order they came, with the days left for the open ones."""
        with self._database.errors():
            rows = self._database.connection.execute(
                f"SELECT {journal_entries.COLUMNS} FROM requests ORDER BY id"
            ).fetchall()
        found = [journal_entries.read(row) for row in rows]
        return [Listed(entry, entry.days_left(now)) for entry in found]

    def acknowledge(self, number: int, now: datetime) -> Entry:
        """Note that an acknowledgement was made out for the client; the first time counts."""
        with self._database.writing() as connection:
            return journal_rules.acknowledge(connection, number, now)

    def extend(self, number: int, months: int, reason: str, now: datetime) -> Entry:
        """Put the due date off to `months` (1 or 2) beyond the first month, and say why."""
        with self._database.writing() as connection:
            return journal_rules.extend(connection, number, months, reason, now)

    def set_quota(self, client: str, most: int) -> None:
        """Allow a client this many requests in 30 days, whatever holds for the others."""
        with self._database.writing() as connection:
            journal_rules.set_quota(connection, client, most)

    def lease(self, number: int, holder: Holder, now: datetime, seconds: int) -> Lease:
        """Give `holder` the request for some seconds, or longer if it has it already."""
        with self._database.writing() as connection:
            journal_entries.of(connection, number)
            return journal_rules.acquire_lease(connection, number, holder, now, seconds)

    def renew(self, number: int, holder: Holder, now: datetime, seconds: int) -> Lease:
        """Let `holder` keep a request that it still has; RecordError once anybody else had it."""
        with self._database.writing() as connection:
            return journal_rules.renew_lease(connection, number, holder, now, seconds)

    def release(self, number: int, holder: Holder) -> None:
        """Give the request back; nothing happens if another holder has it by now."""
        with self._database.writing() as connection:
            journal_rules.release_lease(connection, number, holder)

    def leased_until(self, number: int) -> datetime | None:
        """Return until when the request is leased; None if nobody has it."""
        with self._database.errors():
            return journal_rules.lease_end(self._database.connection, number)

    def append(
        self,
        number: int,
        state: str,
        details: Mapping[str, Any],
        now: datetime,
        *,
        holder: Holder,
        allowed: Allowed,
    ) -> TransitionRow:
        """Take the request to its next state, and close it where none can follow.

        `holder` must be the last that leased the request; a lapsed lease counts until another
        holder takes it.
        """
        with self._database.writing() as connection:
            journal_entries.of(connection, number)
            journal_rules.check_lease(connection, number, holder)
            added = insert_transition(connection, number, state, details, now, allowed)
            if not allowed[state]:
                connection.execute("UPDATE requests SET status = 'closed' WHERE id = ?", (number,))
                journal_rules.release_lease(connection, number, holder)
        return added

    def transitions(self, number: int) -> list[TransitionRow]:
        """Return the request's way so far."""
        with self._database.errors():
            found = read_transitions(self._database.connection, number)
        if not found:
            raise journal_entries.unknown(number)
        return found

    def number_of(self, digest: str) -> int | None:
        """Return the number of the request with this digest; None if it never came."""
        with self._database.errors():
            query = "SELECT id FROM requests WHERE digest = ?"
            found = self._database.connection.execute(query, (digest,)).fetchone()
        return None if found is None else int(found[0])

    def last_at(self, number: int) -> datetime:
        """Return the latest moment that is written down about a request."""
        entry = self.entry(number)
        known = (entry.received, entry.acknowledged, self.transitions(number)[-1].at)
        return max(at for at in known if at is not None)

    def keep_head(self, head: Head) -> None:
        """Remember how far the ledger goes; from then on it cannot be cut before that unseen."""
        with self._database.writing() as connection:
            connection.execute(
                "INSERT INTO ledger VALUES (1, ?, ?) ON CONFLICT (one) DO UPDATE "
                "SET number = excluded.number, hash = excluded.hash",
                (head.number, head.hash),
            )

    def head(self) -> Head | None:
        """Return how far the ledger went when it was last written to; None before that."""
        with self._database.errors():
            query = "SELECT number, hash FROM ledger"
            found = self._database.connection.execute(query).fetchone()
        try:
            return None if found is None else Head(number=found[0], hash=found[1])
        except ValidationError as error:
            raise RecordError(
                f"{self.path}: the ledger's head in it is damaged: restore it from a backup"
            ) from error


def _add(connection: sqlite3.Connection, request: Request, data: bytes, now: datetime) -> int:
    received = parse_time(format_time(now))
    number = connection.execute(
        "INSERT INTO requests (client, digest, nonce, envelope, received, due, status) "
        "VALUES (?, ?, ?, ?, ?, ?, 'open') RETURNING id",
        (
            request.client,
            request.digest(),
            request.nonce,
            data,
            format_time(received),
            format_time(due_date(received)),
        ),
    ).fetchone()[0]
    insert_received(connection, number, received)
    return int(number)


RECEIVED = "received"  # every request's first state
_DETAILS_BYTES = 8 << 20  # four counts for each of 100,000 classes are the most there is

# For each state those that may follow it; a request is closed where none can.
Allowed = Mapping[str, Collection[str]]


def insert_received(connection: sqlite3.Connection, number: int, now: datetime) -> None:
    """Write the first transition of a new request."""
    _insert(connection, number, 0, RECEIVED, now, b"{}")


def insert_transition(
    connection: sqlite3.Connection,
    number: int,
    state: str,
    details: Mapping[str, Any],
    now: datetime,
    allowed: Allowed,
) -> TransitionRow:
    """Write the next transition if it is allowed after the last one.

    It is stamped no earlier than that one, whatever the clock says.
    """
    check_name(state, "state")
    if state not in allowed:
        raise ConfigError(f"no state {state!r}: expected one of {', '.join(sorted(allowed))}")
    content = to_canonical(dict(details))
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
    return TransitionRow(
        request=number,
        number=last + 1,
        state=state,
        at=parse_time(format_time(now)),
        details=parse(content, _DETAILS_BYTES),
    )


def read_transitions(connection: sqlite3.Connection, number: int) -> list[TransitionRow]:
    """Return a request's transitions in order; none if it is unknown."""
    rows = connection.execute(
        "SELECT number, state, at, details FROM transitions WHERE request = ? ORDER BY number",
        (number,),
    ).fetchall()
    if [row[0] for row in rows] != list(range(len(rows))):
        raise damaged(number)
    try:
        return [
            TransitionRow(
                request=number,
                number=place,
                state=check_name(state),
                at=parse_time(at),
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
        (number, place, state, format_time(now), content.decode()),
    )
