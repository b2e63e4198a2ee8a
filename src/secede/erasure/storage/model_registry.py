"""The registry of models: where each comes from, its status, and which clients it carries.

A model carries all clients that its parent carried and those of its own rounds. An erasure takes
the leaver out and retires every model of the run that carries it, in the transaction that puts the
new one into service. At most one model of a run is serving.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from secede.erasure.storage.sqlite import Database
from secede.erasure.types import Count, Digest, Document, Name, Status, describe_errors, format_time
from secede.errors import GuardError, RecordError
from secede.text import short_digest

_NAME: TypeAdapter[str] = TypeAdapter(Name)
_DIGEST: TypeAdapter[str] = TypeAdapter(Digest)
_STATEMENTS = (
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
    """A model to put into service, and the clients of its rounds since its parent."""

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


class ModelRegistry(Database):
    """The registry in its SQLite file."""

    kind, version, statements = "registry of models", 1, _STATEMENTS

    def promote(self, candidate: Candidate, now: datetime, *, replaces: str | None = None) -> Model:
        """Put a model into service and supersede its parent, in one step.

        One that was not trained from the serving model, from scratch say, `replaces` it all the
        same. Doing the same again changes nothing. A parent that no longer serves is refused:
        somebody else was faster.
        """
        with self.transaction():
            if not self._is_registered(candidate):
                self._refuse_erased(candidate.clients)
                self._supersede(candidate, replaces or candidate.parent, now)
                self._insert(candidate, self._carried(candidate.parent), now)
            return self._model(candidate.digest)

    def promote_erased(
        self, candidate: Candidate, *, client: str, request: str, now: datetime
    ) -> Model:
        """Put a model without `client` into service and retire all of its run that carry it.

        In one step, and the client's updates are refused from then on. `request` is the digest of
        the request for it. Doing the same again changes nothing.
        """
        client, request = _validated(_NAME, client), _validated(_DIGEST, request)
        if candidate.parent is None:
            raise RecordError("an erased model needs the parent that it was erased from")
        with self.transaction() as connection:
            if self._is_registered(candidate):
                self._check_erasure(client, request, candidate.digest)
                return self._model(candidate.digest)
            carried = self._carried(candidate.parent)
            if client not in carried:
                raise RecordError(
                    f"model {short_digest(candidate.parent)} does not carry {client!r}"
                )
            if client in candidate.clients:
                raise RecordError(f"{client!r} took part in training the model that is to lack it")
            self._refuse_erased(candidate.clients)
            self._supersede(candidate, candidate.parent, now)
            connection.execute(
                "UPDATE models SET status = 'retired', changed = ? WHERE run = ? AND digest IN "
                "(SELECT model FROM contributions WHERE client = ?)",
                (format_time(now), candidate.run, client),
            )
            self._insert(candidate, carried - {client}, now)
            connection.execute(
                "INSERT INTO erased VALUES (?, ?, ?, ?)",
                (client, candidate.digest, request, format_time(now)),
            )
            return self._model(candidate.digest)

    def models(self) -> tuple[Model, ...]:
        """Return all models, in the order in which they came."""
        return self._models("SELECT digest FROM models ORDER BY rowid")

    def serving(self, run: str) -> Model | None:
        """Return the run's serving model, if there is one."""
        query = "SELECT digest FROM models WHERE run = ? AND status = 'serving'"
        return next(iter(self._models(query, run)), None)

    def serving_model(self, run: str) -> Model:
        """Return the run's serving model; RecordError if there is none."""
        model = self.serving(run)
        if model is None:
            raise RecordError(f"run {run!r} has no serving model in {self.path}")
        return model

    def carriers(self, client: str, *, retired: bool = False) -> tuple[Model, ...]:
        """Return the models that still carry `client`; with `retired`, those out of use too."""
        query = (
            "SELECT digest FROM models JOIN contributions ON model = digest WHERE client = ? "
            "AND (? OR status != 'retired') ORDER BY models.rowid"
        )
        return self._models(query, client, retired)

    def clients(self) -> frozenset[str]:
        """Return the names of all clients that any model ever carried."""
        rows = self.fetch_all("SELECT DISTINCT client FROM contributions")
        return frozenset(client for (client,) in rows)

    def erased_clients(self) -> tuple[str, ...]:
        """Return the names of the erased clients, sorted."""
        rows = self.fetch_all("SELECT DISTINCT client FROM erased ORDER BY client")
        return tuple(client for (client,) in rows)

    def erasures(self) -> frozenset[tuple[str, str, str]]:
        """Return all erasures: the client, the model without it, and the request's digest."""
        rows = self.fetch_all("SELECT client, model, request FROM erased")
        return frozenset((client, model, request) for client, model, request in rows)

    def check_update(
        self, client: str, base: str, *, in_progress: Collection[str] | None = ()
    ) -> None:
        """Refuse an update of an erased client, or one whose base is a model out of use.

        It may start from a registered model, or from a state of an erasure `in_progress`; None:
        from any that was not registered.
        """
        with self.errors():
            self._refuse_erased((client,))
        status = self.fetch_one("SELECT status FROM models WHERE digest = ?", base)
        if status is None and in_progress is not None and base not in in_progress:
            raise GuardError(
                f"the update of {client!r} starts from a model that is not in the registry"
            )
        if status == ("retired",):
            raise GuardError(
                f"the update of {client!r} starts from model {short_digest(base)}, which is "
                "retired: train from the serving one"
            )

    def _models(self, query: str, *values: object) -> tuple[Model, ...]:
        return tuple(self._model(digest) for (digest,) in self.fetch_all(query, *values))

    def _model(self, digest: str) -> Model:
        query = "SELECT parent, run, round, status, added, changed FROM models WHERE digest = ?"
        row = self.fetch_one(query, digest)
        if row is None:
            raise RecordError(f"model {short_digest(digest)} is not in the registry")
        parent, run, number, status, added, changed = row
        return Model(
            digest=digest,
            parent=parent,
            run=run,
            round=number,
            status=status,
            added=added,
            changed=changed,
            clients=tuple(sorted(self._carried(digest))),
        )

    def _carried(self, digest: str | None) -> set[str]:
        """Return the clients that a model carries; none if there is no model."""
        rows = self.fetch_all("SELECT client FROM contributions WHERE model = ?", digest)
        return {client for (client,) in rows}

    def _is_registered(self, candidate: Candidate) -> bool:
        """Return whether the model is registered; one with another origin raises."""
        query = "SELECT parent, run, round FROM models WHERE digest = ?"
        origin = self.fetch_one(query, candidate.digest)
        if origin is not None and origin != (candidate.parent, candidate.run, candidate.round):
            raise RecordError(
                f"model {short_digest(candidate.digest)} is in the registry with another parent, "
                "run or round"
            )
        return origin is not None

    def _check_erasure(self, client: str, request: str, model: str) -> None:
        """Raise unless `model` came from this erasure."""
        query = "SELECT request FROM erased WHERE client = ? AND model = ?"
        if self.fetch_one(query, client, model) != (request,):
            raise RecordError(
                f"model {short_digest(model)} is in the registry, but not by this erasure of "
                f"{client!r}"
            )

    def _refuse_erased(self, clients: Iterable[str]) -> None:
        """Raise if any of `clients` was erased."""
        query = "SELECT at FROM erased WHERE client = ? ORDER BY at LIMIT 1"
        for client in clients:
            erased_at = self.connection.execute(query, (client,)).fetchone()
            if erased_at is not None:
                raise GuardError(
                    f"{client!r} was erased at {erased_at[0]}: its updates are refused; an "
                    "institution that joins again does so under a new name"
                )

    def _supersede(self, candidate: Candidate, expected: str | None, now: datetime) -> None:
        """Supersede the serving model; raise unless it is the expected one, mostly the parent."""
        row = self.fetch_one(
            "SELECT digest FROM models WHERE run = ? AND status = 'serving'", candidate.run
        )
        serving = row[0] if row else None
        if serving != expected:
            raise RecordError(
                f"run {candidate.run!r} serves {_describe(serving)}, not {_describe(expected)}, "
                "which the new model comes from: another one was promoted since, or it was retired"
            )
        self.connection.execute(
            "UPDATE models SET status = 'superseded', changed = ? WHERE digest = ?",
            (format_time(now), serving),
        )

    def _insert(self, candidate: Candidate, inherited: Iterable[str], now: datetime) -> None:
        """Register a model as serving, with its own clients and the inherited ones."""
        time = format_time(now)
        self.connection.execute(
            "INSERT INTO models VALUES (?, ?, ?, ?, 'serving', ?, ?)",
            (candidate.digest, candidate.parent, candidate.run, candidate.round, time, time),
        )
        self.connection.executemany(
            "INSERT INTO contributions VALUES (?, ?)",
            [(candidate.digest, client) for client in sorted({*inherited, *candidate.clients})],
        )


def _validated(kind: TypeAdapter[str], value: str) -> str:
    """Return a name or digest that is valid."""
    try:
        return kind.validate_python(value, strict=True)
    except ValidationError as error:
        raise RecordError(f"not a name or digest ({describe_errors(error)})") from error


def _describe(digest: str | None) -> str:
    return f"model {short_digest(digest)}" if digest else "no model"
