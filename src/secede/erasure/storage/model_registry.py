"""The registry of models: where each comes from, what became of it, and whom it still carries.

A model carries all clients that its parent carried and those of its own rounds; an erasure takes
the leaver out and retires every model of the run that carries it, in the same transaction that
puts the new one into service. There is one serving model per run at most.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, TypeAdapter, ValidationError

from secede.erasure.documents.ledger_rows import Status
from secede.erasure.storage.sqlite import Database
from secede.erasure.types import Count, Digest, Document, Name, describe_errors, format_time
from secede.errors import GuardError, RecordError
from secede.text import short_digest

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
        raise RecordError(f"model {short_digest(digest)} is not in the registry")
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
            f"model {short_digest(candidate.digest)} is in the registry with another parent, run "
            "or round"
        )
    return found is not None


def check_erased(connection: sqlite3.Connection, client: str, request: str, model: str) -> None:
    """Raise unless `model` came from this erasure."""
    query = "SELECT request FROM erased WHERE client = ? AND model = ?"
    if connection.execute(query, (client, model)).fetchone() != (request,):
        raise RecordError(
            f"model {short_digest(model)} is in the registry, but not by this erasure of {client!r}"
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
            f"run {candidate.run!r} serves {_name(serving)}, not {_name(replaced)}, which the new "
            "model comes from: another one was promoted since, or it was retired"
        )
    connection.execute(
        "UPDATE models SET status = 'superseded', changed = ? WHERE digest = ?",
        (format_time(now), serving),
    )


def insert_model(
    connection: sqlite3.Connection, candidate: Candidate, carried: Iterable[str], now: datetime
) -> None:
    """Register the model as serving, with all whom it carries."""
    at = format_time(now)
    connection.execute(
        "INSERT INTO models VALUES (?, ?, ?, ?, 'serving', ?, ?)",
        (candidate.digest, candidate.parent, candidate.run, candidate.round, at, at),
    )
    connection.executemany(
        "INSERT INTO contributions VALUES (?, ?)",
        [(candidate.digest, client) for client in sorted(carried)],
    )


def checked_model(kind: TypeAdapter[str], value: str) -> str:
    """Return a name or digest that is one."""
    try:
        return kind.validate_python(value, strict=True)
    except ValidationError as error:
        raise RecordError(f"not a name or digest ({describe_errors(error)})") from error


def _name(digest: str | None) -> str:
    return short_digest(digest) if digest else "no model"


class ModelRegistry:
    """The registry in its SQLite file."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self._database = Database(
            path, "registry of models", SCHEMA, version=VERSION, read_only=read_only
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let the file go."""
        self._database.close()

    def promote(self, candidate: Candidate, now: datetime, *, replaces: str | None = None) -> Model:
        """Put a model into service and supersede its parent, in one step.

        One that was not trained from the serving model, from scratch say, `replaces` it all the
        same. Doing the same again changes nothing. A parent that no longer serves is refused:
        somebody else was faster.
        """
        with self._database.writing() as connection:
            if is_there(connection, candidate):
                return model_of(connection, candidate.digest)
            refuse_erased(connection, candidate.clients)
            supersede(connection, candidate, replaces or candidate.parent, now)
            everybody = {*carried(connection, candidate.parent), *candidate.clients}
            insert_model(connection, candidate, everybody, now)
            return model_of(connection, candidate.digest)

    def promote_erased(
        self, candidate: Candidate, *, client: str, request: str, now: datetime
    ) -> Model:
        """Put a model without `client` into service and retire all of its run that carry it.

        In one step, and the client's updates are refused from then on. `request` is the digest of
        the request for it. Doing the same again changes nothing.
        """
        name, request = checked_model(NAME, client), checked_model(DIGEST, request)
        if candidate.parent is None:
            raise RecordError("an erased model needs the parent that it was erased from")
        with self._database.writing() as connection:
            if is_there(connection, candidate):
                check_erased(connection, name, request, candidate.digest)
                return model_of(connection, candidate.digest)
            before = carried(connection, candidate.parent)
            if name not in before:
                raise RecordError(f"model {short_digest(candidate.parent)} does not carry {name!r}")
            if name in candidate.clients:
                raise RecordError(f"{name!r} took part in training the model that is to lack it")
            refuse_erased(connection, candidate.clients)
            supersede(connection, candidate, candidate.parent, now)
            connection.execute(
                "UPDATE models SET status = 'retired', changed = ? WHERE run = ? AND digest IN "
                "(SELECT model FROM contributions WHERE client = ?)",
                (format_time(now), candidate.run, name),
            )
            insert_model(connection, candidate, {*before - {name}, *candidate.clients}, now)
            connection.execute(
                "INSERT INTO erased VALUES (?, ?, ?, ?)",
                (name, candidate.digest, request, format_time(now)),
            )
            return model_of(connection, candidate.digest)

    def retire(self, digest: str, now: datetime) -> None:
        """Take a model out of use for good."""
        with self._database.writing() as connection:
            model_of(connection, digest)
            connection.execute(
                "UPDATE models SET status = 'retired', changed = ? WHERE digest = ? "
                "AND status != 'retired'",
                (format_time(now), digest),
            )

    def models(self) -> tuple[Model, ...]:
        """Return all models, in the order in which they came."""
        return self._select("SELECT digest FROM models ORDER BY rowid", ())

    def serving(self, run: str) -> Model | None:
        """Return the run's serving model, if there is one."""
        query = "SELECT digest FROM models WHERE run = ? AND status = 'serving'"
        return next(iter(self._select(query, (run,))), None)

    def carriers(self, client: str, *, retired: bool = False) -> tuple[Model, ...]:
        """Return the models that still carry `client`; with `retired`, those out of use too."""
        query = (
            "SELECT digest FROM models JOIN contributions ON model = digest WHERE client = ? "
            "AND (? OR status != 'retired') ORDER BY models.rowid"
        )
        return self._select(query, (client, retired))

    def erased(self) -> tuple[str, ...]:
        """Return the names of the erased clients, sorted."""
        with self._database.errors():
            query = "SELECT DISTINCT client FROM erased ORDER BY client"
            return tuple(client for (client,) in self._database.connection.execute(query))

    def clients(self) -> frozenset[str]:
        """Return the names of all whom any model ever carried."""
        with self._database.errors():
            query = "SELECT DISTINCT client FROM contributions"
            return frozenset(name for (name,) in self._database.connection.execute(query))

    def erasures(self) -> frozenset[tuple[str, str, str]]:
        """Return all erasures: the client, the model without it, and the request's digest."""
        with self._database.errors():
            query = "SELECT client, model, request FROM erased"
            return frozenset(self._database.connection.execute(query).fetchall())

    def check_update(
        self, client: str, base_digest: str, *, working: Collection[str] | None = ()
    ) -> None:
        """Refuse an update of an erased client, or one that starts from a model out of use.

        It may start from a registered model, or from one of the states `working` of an erasure in
        progress; None: from any that was not registered.
        """
        with self._database.errors():
            connection = self._database.connection
            refuse_erased(connection, (client,))
            query = "SELECT status FROM models WHERE digest = ?"
            found = connection.execute(query, (base_digest,)).fetchone()
        if found is None and working is not None and base_digest not in working:
            raise GuardError(
                f"the update of {client!r} starts from a model that is not in the registry"
            )
        if found == ("retired",):
            raise GuardError(
                f"the update of {client!r} starts from model {short_digest(base_digest)}, which is "
                "retired: train from the serving one"
            )

    def _select(self, query: str, values: tuple[object, ...]) -> tuple[Model, ...]:
        with self._database.errors():
            connection = self._database.connection
            found = connection.execute(query, values).fetchall()
            return tuple(model_of(connection, digest) for (digest,) in found)
