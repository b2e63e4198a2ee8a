"""The registry of models: where each comes from, what became of it, and whom it still carries.

A model carries all clients that its parent carried and those of its own rounds; an erasure takes
the leaver out and retires every model of the run that carries it, in the same transaction that
puts the new one into service. There is one serving model per run at most.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from pathlib import Path
from typing import Self

from secede.erasure.storage.registry import (
    DIGEST,
    NAME,
    SCHEMA,
    VERSION,
    Candidate,
    Model,
    add,
    carried,
    check_erased,
    checked,
    is_there,
    model_of,
    refuse_erased,
    short,
    supersede,
)
from secede.erasure.storage.sqlite import Database
from secede.erasure.types import stamp
from secede.errors import GuardError, RecordError


class Lineage:
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
            add(connection, candidate, everybody, now)
            return model_of(connection, candidate.digest)

    def promote_erased(
        self, candidate: Candidate, *, client: str, request: str, now: datetime
    ) -> Model:
        """Put a model without `client` into service and retire all of its run that carry it.

        In one step, and the client's updates are refused from then on. `request` is the digest of
        the request for it. Doing the same again changes nothing.
        """
        name, request = checked(NAME, client), checked(DIGEST, request)
        if candidate.parent is None:
            raise RecordError("an erased model needs the parent that it was erased from")
        with self._database.writing() as connection:
            if is_there(connection, candidate):
                check_erased(connection, name, request, candidate.digest)
                return model_of(connection, candidate.digest)
            before = carried(connection, candidate.parent)
            if name not in before:
                raise RecordError(f"model {short(candidate.parent)} does not carry {name!r}")
            if name in candidate.clients:
                raise RecordError(f"{name!r} took part in training the model that is to lack it")
            refuse_erased(connection, candidate.clients)
            supersede(connection, candidate, candidate.parent, now)
            connection.execute(
                "UPDATE models SET status = 'retired', changed = ? WHERE run = ? AND digest IN "
                "(SELECT model FROM contributions WHERE client = ?)",
                (stamp(now), candidate.run, name),
            )
            add(connection, candidate, {*before - {name}, *candidate.clients}, now)
            connection.execute(
                "INSERT INTO erased VALUES (?, ?, ?, ?)",
                (name, candidate.digest, request, stamp(now)),
            )
            return model_of(connection, candidate.digest)

    def retire(self, digest: str, now: datetime) -> None:
        """Take a model out of use for good."""
        with self._database.writing() as connection:
            model_of(connection, digest)
            connection.execute(
                "UPDATE models SET status = 'retired', changed = ? WHERE digest = ? "
                "AND status != 'retired'",
                (stamp(now), digest),
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
                f"the update of {client!r} starts from model {short(base_digest)}, which is "
                "retired: train from the serving one"
            )

    def _select(self, query: str, values: tuple[object, ...]) -> tuple[Model, ...]:
        with self._database.errors():
            connection = self._database.connection
            found = connection.execute(query, values).fetchall()
            return tuple(model_of(connection, digest) for (digest,) in found)
