"""The journal's tables, and how those of older versions become these."""

from __future__ import annotations

from collections.abc import Mapping

from secede.erasure.storage.intact import Migration

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
