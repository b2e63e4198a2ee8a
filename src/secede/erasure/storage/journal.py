"""The journal: every request, when it is due, and all its transitions.

One SQLite file. Each call is one transaction, so a kill leaves all of it or nothing. Who appends
holds the request's lease, which lapses by itself; a holder that lost it can write no more.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from pydantic import ValidationError

from secede.erasure.canonical_json import parse_json, to_canonical
from secede.erasure.documents import (
    Head,
    Request,
    check_times,
    due_date,
    unverified_request,
    verify_request,
)
from secede.erasure.signing import dsse
from secede.erasure.signing.keys import PublicKey
from secede.erasure.storage.journal_entries import (
    DETAILS_BYTES,
    ENTRY_COLUMNS,
    QUOTA,
    Accepted,
    Allowed,
    AlreadyAccepted,
    Entry,
    Holder,
    Lease,
    TransitionRow,
    check_admission,
    check_extension,
    check_free,
    check_lease,
    check_transition,
    damaged_request,
    find_entry,
    find_lease,
    find_transitions,
    parse_entry,
    parse_row_time,
    unknown_request,
)
from secede.erasure.storage.sqlite import Database
from secede.erasure.types import check_name, format_time, parse_time
from secede.errors import ConfigError, RecordError, SecedeError

RECEIVED = "received"  # every request's first state

_STATEMENTS = (
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


class Journal(Database):
    """A journal in its SQLite file; several processes may use it at once."""

    kind, version, statements = "journal", 1, _STATEMENTS
    check_integrity = True

    # Requests

    def accept(
        self,
        data: bytes,
        now: datetime,
        *,
        keyring: Mapping[str, PublicKey],
        federation: str,
        server: str | None = None,
        quota: int = QUOTA,
    ) -> Accepted | AlreadyAccepted:
        """Record a signed request, once however often it comes.

        Every reason to refuse it raises and leaves no trace: TrustError if it is forged or
        changed, RequestError otherwise. `quota` holds for clients that have none of their own.
        """
        request = verify_request(data, keyring, federation=federation, server=server)
        with self.transaction() as connection:
            number = self.number_of(request.digest())
            if number is not None:
                return AlreadyAccepted(find_entry(connection, number))
            check_times(request, now)
            check_admission(connection, request, now, quota)
            return Accepted(find_entry(connection, self._insert_request(request, data, now)))

    def check_new(self, request: Request, now: datetime) -> None:
        """Raise if a genuine request that is not here yet would be refused now."""
        check_times(request, now)
        with self.errors():
            check_admission(self.connection, request, now, QUOTA)

    def number_of(self, digest: str) -> int | None:
        """Return the number of the request with this digest; None if it never came."""
        row = self.fetch_one("SELECT id FROM requests WHERE digest = ?", digest)
        return None if row is None else int(row[0])

    def request(self, number: int) -> Request:
        """Return what the client signed."""
        return self._signed_request(number)[0]

    def signed_request(self, number: int) -> bytes:
        """Return the request as the client signed it."""
        return self._signed_request(number)[1]

    def signed_with(self, number: int) -> frozenset[str]:
        """Return the ids of the keys that a request was signed with."""
        return dsse.key_ids(self._signed_request(number)[1])

    def signing_key(self, number: int) -> str:
        """Return the id of the key that a request was signed with: a request has one signature."""
        return min(self.signed_with(number))

    def entry(self, number: int) -> Entry:
        """Return a request's dates and state."""
        with self.errors():
            return find_entry(self.connection, number)

    def entries(self) -> list[Entry]:
        """Return all requests in the order they came."""
        rows = self.fetch_all(f"SELECT {ENTRY_COLUMNS} FROM requests ORDER BY id")
        return [parse_entry(row) for row in rows]

    def acknowledge(self, number: int, now: datetime) -> Entry:
        """Record when the acknowledgement was first issued."""
        with self.transaction() as connection:
            entry = find_entry(connection, number)
            connection.execute(
                "UPDATE requests SET acknowledged = ? WHERE id = ? AND acknowledged IS NULL",
                (format_time(max(now, entry.received)), number),
            )
            return find_entry(connection, number)

    def extend(self, number: int, months: int, reason: str, now: datetime) -> Entry:
        """Postpone the due date to `months` (1 or 2) after the first month, with a reason."""
        with self.transaction() as connection:
            entry = find_entry(connection, number)
            check_extension(entry, months, reason, now)
            due = due_date(entry.received, months)
            connection.execute(
                "UPDATE requests SET due = ?, extended = ?, reason = ? WHERE id = ?",
                (format_time(due), months, reason, number),
            )
            return find_entry(connection, number)

    def set_quota(self, client: str, limit: int) -> None:
        """Allow a client this many requests in 30 days, whatever holds for the others."""
        if limit < 0:
            raise ConfigError(f"a quota is 0 or more, got {limit}")
        with self.transaction() as connection:
            connection.execute(
                "INSERT INTO quotas VALUES (?, ?) "
                "ON CONFLICT (client) DO UPDATE SET most = excluded.most",
                (check_name(client, "client"), limit),
            )

    # Leases

    def lease(self, number: int, holder: Holder, now: datetime, seconds: int) -> Lease:
        """Give `holder` the request for some seconds, or longer if it has it already."""
        with self.transaction() as connection:
            find_entry(connection, number)
            check_free(connection, number, holder, now)
            return self._insert_lease(number, holder, now, seconds)

    def renew(self, number: int, holder: Holder, now: datetime, seconds: int) -> Lease:
        """Let `holder` keep a request that it still has; RecordError once anybody else had it."""
        with self.transaction() as connection:
            check_lease(connection, number, holder)
            return self._insert_lease(number, holder, now, seconds)

    def release(self, number: int, holder: Holder) -> None:
        """Give the request back; nothing happens if another holder has it by now."""
        with self.transaction():
            self._delete_lease(number, holder)

    def leased_until(self, number: int) -> datetime | None:
        """Return until when the request is leased; None if nobody has it."""
        with self.errors():
            lease = find_lease(self.connection, number)
        return None if lease is None else lease.until

    # Transitions

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
        """Append a transition; close the request after a final one.

        `holder` must be the last that leased the request; a lapsed lease counts until another
        holder takes it. The time is no earlier than the last transition's, whatever the clock says.
        """
        content = to_canonical(dict(details))
        if len(content) > DETAILS_BYTES:
            raise ConfigError(
                f"the details take {len(content):,} bytes, expected at most {DETAILS_BYTES:,}"
            )
        with self.transaction() as connection:
            find_entry(connection, number)
            check_lease(connection, number, holder)
            last, last_state, last_time = connection.execute(
                "SELECT number, state, at FROM transitions WHERE request = ? "
                "ORDER BY number DESC LIMIT 1",
                (number,),
            ).fetchone()
            check_transition(number, last_state, state, allowed)
            now = max(now, parse_row_time(number, last_time))
            self._insert_transition(number, last + 1, state, now, content)
            if not allowed[state]:
                connection.execute("UPDATE requests SET status = 'closed' WHERE id = ?", (number,))
                self._delete_lease(number, holder)
        return TransitionRow(
            request=number,
            number=last + 1,
            state=state,
            at=parse_time(format_time(now)),
            details=parse_json(content, DETAILS_BYTES),
        )

    def transitions(self, number: int) -> list[TransitionRow]:
        """Return the transitions of a request so far."""
        with self.errors():
            transitions = find_transitions(self.connection, number)
        if not transitions:
            raise unknown_request(number)
        return transitions

    def last_time(self, number: int) -> datetime:
        """Return the latest time that is written down about a request."""
        entry, last = self.entry(number), self.transitions(number)[-1]
        return max(entry.received, entry.acknowledged or entry.received, last.at)

    # How far the ledger goes

    def save_ledger_head(self, head: Head) -> None:
        """Remember how far the ledger goes; from then on it cannot be cut before that unseen."""
        with self.transaction() as connection:
            connection.execute(
                "INSERT INTO ledger VALUES (1, ?, ?) ON CONFLICT (one) DO UPDATE "
                "SET number = excluded.number, hash = excluded.hash",
                (head.number, head.hash),
            )

    def ledger_head(self) -> Head | None:
        """Return how far the ledger went when it was last written to; None before that."""
        row = self.fetch_one("SELECT number, hash FROM ledger")
        try:
            return None if row is None else Head(number=row[0], hash=row[1])
        except ValidationError as error:
            raise RecordError(
                f"{self.path}: the ledger's head in it is damaged: restore it from a backup"
            ) from error

    def _signed_request(self, number: int) -> tuple[Request, bytes]:
        row = self.fetch_one("SELECT envelope, digest FROM requests WHERE id = ?", number)
        if row is None:
            raise unknown_request(number)
        envelope, digest = row
        try:
            request = unverified_request(envelope)
        except (SecedeError, TypeError, AttributeError) as error:
            raise damaged_request(number) from error
        if request.digest() != digest:
            raise damaged_request(number)
        return request, envelope

    def _insert_request(self, request: Request, data: bytes, now: datetime) -> int:
        received = parse_time(format_time(now))
        (number,) = self.connection.execute(
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
        ).fetchone()
        self._insert_transition(number, 0, RECEIVED, received, b"{}")
        return int(number)

    def _insert_transition(
        self, request: int, number: int, state: str, now: datetime, details: bytes
    ) -> None:
        self.connection.execute(
            "INSERT INTO transitions VALUES (?, ?, ?, ?, ?)",
            (request, number, state, format_time(now), details.decode()),
        )

    def _insert_lease(self, number: int, holder: Holder, now: datetime, seconds: int) -> Lease:
        if seconds < 1:
            raise ConfigError(f"a lease lasts at least 1 second, got {seconds}")
        until = format_time(now + timedelta(seconds=seconds))
        self.connection.execute(
            "INSERT OR REPLACE INTO leases VALUES (?, ?, ?, ?)",
            (number, holder.pid, holder.token, until),
        )
        return Lease(number, holder, parse_time(until))

    def _delete_lease(self, number: int, holder: Holder) -> None:
        query = "DELETE FROM leases WHERE request = ? AND token = ?"
        self.connection.execute(query, (number, holder.token))
