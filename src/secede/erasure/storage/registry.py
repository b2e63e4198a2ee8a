"""The tables of the registry of models: what goes in, what comes out, and what is refused."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from secede.erasure.documents.ledger_rows import Status
from secede.erasure.types import Count, Digest, Document, Name, faults, stamp
from secede.errors import GuardError, RecordError

NAME: TypeAdapter[str] = TypeAdapter(Name)
DIGEST: TypeAdapter[str] = TypeAdapter(Digest)
VERSION = 1
SCHEMA = (
    """CREATE TABLE models (
    digest TEXT PRIMARY KEY,
    parent TEXT REFERENCES models,
    run TEXT NOT NULL,
    round INTEGER NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('serving', 'superseded', 'retired')),
    added TEXT NOT NULL,
    changed TEXT NOT NULL
) STRICT""",
    "CREATE UNIQUE INDEX one_serves ON models (run) WHERE status = 'serving'",
    """CREATE TABLE contributions (
    model TEXT NOT NULL REFERENCES models,
    client TEXT NOT NULL,
    PRIMARY KEY (model, client)
) STRICT, WITHOUT ROWID""",
    "CREATE INDEX by_client ON contributions (client)",
    """CREATE TABLE erased (
    client TEXT NOT NULL,
    model TEXT NOT NULL REFERENCES models,
    request TEXT NOT NULL,
    at TEXT NOT NULL,
    PRIMARY KEY (client, model)
) STRICT, WITHOUT ROWID""",
    """CREATE TRIGGER retired_models_stay_retired BEFORE UPDATE ON models
WHEN OLD.status = 'retired' AND NEW.status != 'retired'
BEGIN SELECT RAISE(ABORT, 'a retired model stays retired'); END""",
)


class Candidate(Document):
    """A model that is to go into service, and who took part in its rounds since the parent's."""

    digest: Digest
    parent: Digest | None
    run: Name
    round: Count
    clients: Annotated[tuple[Name, ...], Field(max_length=100_000)]


@dataclass(frozen=True, kw_only=True)
class Model:
    """A registered model; `clients` are all that it carries."""

    digest: str
    parent: str | None
    run: str
    round: int
    status: Status
    added: str
    changed: str
    clients: tuple[str, ...]


def model_of(connection: sqlite3.Connection, digest: str) -> Model:
    """Return a registered model."""
    query = "SELECT parent, run, round, status, added, changed FROM models WHERE digest = ?"
    found = connection.execute(query, (digest,)).fetchone()
    if found is None:
        raise RecordError(f"model {short(digest)} is not in the registry")
    parent, run, number, status, added, changed = found
    return Model(
        digest=digest,
        parent=parent,
        run=run,
        round=number,
        status=status,
        added=added,
        changed=changed,
        clients=tuple(sorted(carried(connection, digest))),
    )


def carried(connection: sqlite3.Connection, digest: str | None) -> set[str]:
    """Return the clients that a model carries; none if there is no model."""
    query = "SELECT client FROM contributions WHERE model = ?"
    return {client for (client,) in connection.execute(query, (digest,))}


def is_there(connection: sqlite3.Connection, candidate: Candidate) -> bool:
    """Return whether the model is registered; one with another origin raises."""
    query = "SELECT parent, run, round FROM models WHERE digest = ?"
    found = connection.execute(query, (candidate.digest,)).fetchone()
    if found is not None and found != (candidate.parent, candidate.run, candidate.round):
        raise RecordError(
            f"model {short(candidate.digest)} is in the registry with another parent, run or round"
        )
    return found is not None


def check_erased(connection: sqlite3.Connection, client: str, request: str, model: str) -> None:
    """Raise unless `model` came from this erasure."""
    query = "SELECT request FROM erased WHERE client = ? AND model = ?"
    if connection.execute(query, (client, model)).fetchone() != (request,):
        raise RecordError(
            f"model {short(model)} is in the registry, but not by this erasure of {client!r}"
        )


def refuse_erased(connection: sqlite3.Connection, clients: Iterable[str]) -> None:
    """Raise if any of `clients` was erased."""
    for client in clients:
        query = "SELECT at FROM erased WHERE client = ? ORDER BY at LIMIT 1"
        found = connection.execute(query, (client,)).fetchone()
        if found is not None:
            raise GuardError(
                f"{client!r} was erased at {found[0]}: its updates are refused; an institution "
                "that joins again does so under a new name"
            )


def supersede(
    connection: sqlite3.Connection, candidate: Candidate, replaced: str | None, now: datetime
) -> None:
    """Supersede the model that the new one replaces, mostly its parent; it must still serve."""
    query = "SELECT digest FROM models WHERE run = ? AND status = 'serving'"
    found = connection.execute(query, (candidate.run,)).fetchone()
    serving = found[0] if found else None
    if serving != replaced:
        raise RecordError(
            f"run {candidate.run!r} serves {short(serving)}, not {short(replaced)}, which the new "
            "model comes from: another one was promoted since, or it was retired"
        )
    connection.execute(
        "UPDATE models SET status = 'superseded', changed = ? WHERE digest = ?",
        (stamp(now), serving),
    )


def add(
    connection: sqlite3.Connection, candidate: Candidate, carried: Iterable[str], now: datetime
) -> None:
    """Register the model as serving, with all whom it carries."""
    at = stamp(now)
    connection.execute(
        "INSERT INTO models VALUES (?, ?, ?, ?, 'serving', ?, ?)",
        (candidate.digest, candidate.parent, candidate.run, candidate.round, at, at),
    )
    connection.executemany(
        "INSERT INTO contributions VALUES (?, ?)",
        [(candidate.digest, client) for client in sorted(carried)],
    )


def checked(kind: TypeAdapter[str], value: str) -> str:
    """Return a name or digest that is one."""
    try:
        return kind.validate_python(value, strict=True)
    except ValidationError as error:
        raise RecordError(f"not a name or digest ({faults(error)})") from error


def short(digest: str | None) -> str:
    """Return a digest as it is shown in a sentence."""
    return f"{digest[:12]}…" if digest else "no model"
