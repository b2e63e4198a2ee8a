"""Consistency of a home's models: the registry, the files and the ledger must tell the same."""

from __future__ import annotations

from collections.abc import Sequence

from secede import state as states
from secede.erasure.defences.fingerprints import Fingerprints
from secede.erasure.documents import (
    DeliveredBody,
    DestroyedBody,
    ModelBody,
    ReceiptBody,
    RequestBody,
    Row,
    SketchBody,
)
from secede.erasure.storage import RESTORE, Entry, Home, Model, ModelRegistry
from secede.errors import StateError, StorageError, TrustError
from secede.text import short_digest


def check_registry(
    home: Home, registry: ModelRegistry, entries: Sequence[Entry], rows: Sequence[Row]
) -> None:
    """Raise unless models are registered, in use and carry whom the ledger says."""
    underway = {entry.digest for entry in entries if entry.open}
    _check_erased(registry, underway, rows)
    _check_models(home, registry, rows)
    _check_status(registry, home.federation.run, underway, rows)
    _check_carriers(registry, rows)


def check_files(home: Home, registry: ModelRegistry, rows: Sequence[Row]) -> None:
    """Raise unless the serving model and all fingerprints are as they were written."""
    serving = registry.serving_model(home.federation.run)
    path = home.model_path(serving.digest)
    try:
        altered = path.exists() and states.digest(states.load(path)[0]) != serving.digest
    except StateError as error:
        raise StorageError(f"{error}: restore the file from a backup") from error
    if altered:
        raise StorageError(
            f"{path}: not the model that was registered; restore the file from a backup"
        )
    for row in rows:
        if isinstance(body := row.document, SketchBody):
            fingerprints = Fingerprints(home.sketches(body.what))
            if not fingerprints.has(body.of) or fingerprints.row(body.what, body.of) != body:
                raise TrustError(
                    f"the fingerprint of {body.what} {short_digest(body.of)} in "
                    f"{home.sketches(body.what)}, or its seed, is missing or was altered: restore "
                    "it from a backup"
                )


def _check_erased(registry: ModelRegistry, underway: set[str], rows: Sequence[Row]) -> None:
    """Raise unless the registry holds every erasure that has a receipt, and none without a row."""
    bodies = [row.document for row in rows]
    clients = {body.request: body.client for body in bodies if isinstance(body, RequestBody)}
    issued = {body.request for body in bodies if isinstance(body, ReceiptBody)}
    erasures = registry.erasures()
    for body in bodies:
        if isinstance(body, ReceiptBody):
            client = clients.get(body.request)
            if (client, body.after, body.request) not in erasures:
                raise TrustError(
                    f"the ledger says that {client!r} was erased, the registry of models does "
                    f"not: one of them is outdated or altered; {RESTORE}"
                )
    for client, _, request in erasures:
        if clients.get(request) != client:
            raise TrustError(
                f"the registry of models says that {client!r} was erased, the ledger has no "
                f"request for it: it is outdated or another one; {RESTORE}"
            )
        if request not in issued | underway:
            raise TrustError(
                f"the registry of models says that {client!r} was erased, the ledger names no "
                f"receipt for it: its rows were cut off; {RESTORE}"
            )


def _check_models(home: Home, registry: ModelRegistry, rows: Sequence[Row]) -> None:
    """Raise unless each model is registered as its rows say, and destroyed ones are gone."""
    models = {model.digest: model for model in registry.models()}
    for row in rows:
        body = row.document
        if isinstance(body, ModelBody):
            model = models.get(body.model)
            if model is None or (body.status == "retired" and model.status != "retired"):
                status = "missing" if model is None else model.status
                raise TrustError(
                    f"model {short_digest(body.model)} is {body.status} by the ledger and "
                    f"{status} in the registry of models: one of them is outdated or altered; "
                    f"{RESTORE}"
                )
            if (model.parent, model.run, model.round) != (body.parent, body.run, body.round):
                raise TrustError(
                    f"model {short_digest(body.model)} has another parent, run or round in the "
                    f"ledger than in the registry of models: one of them was altered; {RESTORE}"
                )
        elif isinstance(body, DestroyedBody) and body.what == "model-before" and body.digest:
            path = home.model_path(body.digest)
            if path.exists():
                raise TrustError(
                    f"{path} was destroyed by an erasure and is there again, as after a restore: "
                    "delete it"
                )


def _check_status(
    registry: ModelRegistry, run: str, underway: set[str], rows: Sequence[Row]
) -> None:
    """Raise unless the last model of the ledger serves, and what is retired has a row of it.

    A model without rows may serve, and others be retired for it, while its erasure is underway or
    its training is registered: its rows are written next.
    """
    bodies = [row.document for row in rows if isinstance(row.document, ModelBody)]
    served = [body.model for body in bodies if body.status == "serving" and body.run == run]
    serving = registry.serving(run)
    if serving is None or (serving.digest in served and serving.digest != served[-1]):
        expected = short_digest(served[-1]) if served else "no model"
        found = short_digest(serving.digest) if serving else "none"
        raise TrustError(
            f"{expected} serves by the ledger, {found} in the registry of models: one of them was "
            f"altered; {RESTORE}"
        )
    retired = {body.model for body in bodies if body.status == "retired"}
    replacing = any(request in underway for _, _, request in registry.erasures())
    for model in registry.models():
        if model.status == "retired" and model.digest not in retired and not replacing:
            raise TrustError(
                f"model {short_digest(model.digest)} is retired in the registry of models and not "
                f"by the ledger: one of them was altered; {RESTORE}"
            )


def _check_carriers(registry: ModelRegistry, rows: Sequence[Row]) -> None:
    """Raise unless each model carries those of its parent and of its rounds, and nobody else."""
    models = {model.digest: model for model in registry.models()}
    erasures, delivered = registry.erasures(), dict[str, set[str]]()
    complete = {row.document.model for row in rows if isinstance(row.document, ModelBody)}
    for row in rows:
        if isinstance(body := row.document, DeliveredBody) and body.model in models:
            delivered.setdefault(body.model, set()).update(body.clients)
    gone = {client for client, _, _ in erasures}
    for model in models.values():
        parent = models.get(model.parent or "")
        inherited = {*(parent.clients if parent else ())}
        without = {client for client, made, _ in erasures if made == model.digest}
        received = delivered.get(model.digest, set())
        lost = (inherited - without | received - gone) - {*model.clients}
        more = {*model.clients} - inherited - (set() if without else received)
        _check_carried(model, lost, more if without or model.digest in complete else set())


def _check_carried(model: Model, lost: set[str], more: set[str]) -> None:
    if lost:
        raise TrustError(
            f"model {short_digest(model.digest)} carries {min(lost)!r}, the registry of models "
            f"does not say so: it was altered; {RESTORE}"
        )
    if more:
        raise TrustError(
            f"the registry of models says that {short_digest(model.digest)} carries "
            f"{min(more)!r}, who had no part in it: it was altered; {RESTORE}"
        )
