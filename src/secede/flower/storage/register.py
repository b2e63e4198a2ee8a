"""Registers a recorded federation in its home: the clients, the serving model, the server's key.

It is done at the beginning of each erasure; doing it again changes nothing. All training since the
last time is registered as one model with all of its contributors. Its parent is the registered
model that the training began with, none if it began from scratch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from secede import files
from secede.erasure import (
    CanaryCommitment,
    Candidate,
    Client,
    Federation,
    Home,
    Journal,
    Ledger,
    Model,
    ModelBody,
    ModelRegistry,
    Scope,
    bind_federation,
    check_home,
    delivered_rows,
    parse_time,
    to_canonical,
)
from secede.errors import ConfigError, RecordError
from secede.flower.storage.round_log import Round
from secede.flower.storage.store import Store
from secede.text import short_digest


def check_recorded(store: Store) -> None:
    """Raise if no round was recorded that a client could be erased from."""
    if store.last_round() is None:
        raise ConfigError(
            f"{store.path} holds no completed round: train first, with "
            f"secede.{store.engine} recording it (docs/{store.engine}.md)"
        )


def register_federation(store: Store) -> Home:
    """Set up the home of a recorded federation, or bring it up to date; the caller locks it."""
    check_recorded(store)
    store.trainings.check_finished()
    lineage = store.log.lineage()
    clients = _clients(store, lineage)
    if len(clients) < 2:
        raise ConfigError(f"only {clients[0].name!r} ever contributed: no client would be left")
    home = store.home
    founded = (home.path / "federation.json").exists()
    if founded and home.federation.name != store.name:
        raise RecordError(
            f"{home.path} is the home of {home.federation.name!r}, not of {store.name!r}"
        )
    home.make_server_key()  # a lost public key is derived again
    if founded:
        _check(home)
    values = {"engine": store.engine, "strategy": lineage[-1].strategy, "weights": "weighted mean"}
    recipe = to_canonical(values) + b"\n"
    _register(store, lineage)
    federation = Federation(
        name=store.name,
        run=store.name,
        clients=clients,
        recipe=hashlib.sha256(recipe).hexdigest(),
    )
    with Journal(home.journal) as journal, Ledger(home.ledger) as ledger:
        ledger.verify(journal.ledger_head())
        bind_federation(home, journal, ledger, federation, store.clock())
    files.write_bytes(home.path / "recipe.json", recipe)
    home.save_federation(federation)
    return home


def scope(store: Store, client: str) -> Scope:
    """Return what a client contributed by training, without the rounds of erasures."""
    lineage = store.log.lineage()
    trained = [r for r in lineage if not r.erased]
    weight = trained[-1].share(client) if trained else 0.0
    return _scope(lineage, client, weight, store.log.canaries())


def _scope(
    rounds: Sequence[Round], client: str, weight: float, canaries: Mapping[str, CanaryCommitment]
) -> Scope:
    """Return what a client contributed by training; post-training is added elsewhere."""
    joined = [r for r in rounds if any(c.client == client for c in r.clients)]
    numbers = [r.number for r in joined if not r.erased] or [r.number for r in joined]
    return Scope(
        first_round=numbers[0],
        last_round=numbers[-1],
        rounds=len(numbers),
        weight=weight,
        canaries=canaries.get(client),
    )


def _clients(store: Store, lineage: Sequence[Round]) -> tuple[Client, ...]:
    """Describe all clients; one that has no part in the model, by its rounds before that.

    A client's weight is its share of a mean of all clients, by their last recorded weights.
    """
    contributors = {c.client for r in lineage for c in r.clients}
    weights = {c.client: c.weight for r in lineage if not r.erased for c in r.clients}
    every, total = store.log.rounds(), sum(weights.values()) or 1
    canaries = store.log.canaries()
    return tuple(
        Client(
            name=node.name,
            number=number,
            scope=_scope(
                lineage if node.name in contributors else every,
                node.name,
                weights.get(node.name, 0.0) / total,
                canaries,
            ),
        )
        for number, node in enumerate(store.clients())
    )


def _check(home: Home) -> None:
    """Raise unless the home's records agree, before anything is added to them."""
    home.check_journal()
    with (
        Journal(home.journal) as journal,
        Ledger(home.ledger) as ledger,
        ModelRegistry(home.registry) as registry,
    ):
        check_home(home, journal, ledger, registry)


def _register(store: Store, lineage: Sequence[Round]) -> None:
    """Register the last model as the serving one, unless it is known; then append ledger rows.

    A kill between the two leaves a model without rows: they are appended at the next start.
    """
    home, last = store.home, lineage[-1]
    with Journal(home.journal), ModelRegistry(home.registry) as registry:
        known = {model.digest: model for model in registry.models()}
        model = known.get(last.model)
        if model is None:
            model = _promote(store, lineage, registry, set(known))
    if model.status == "superseded":
        raise RecordError(
            f"the last round ended with model {short_digest(last.model)}, which served before and "
            "was replaced: train for another round"
        )
    # An erasure that was cut short has replaced it, or a completed one wrote its own rows.
    if model.status == "retired" or last.erased:
        return
    with Ledger(home.ledger) as ledger, Journal(home.journal) as journal:
        ledger.verify(journal.ledger_head())
        at = parse_time(last.at)
        for part in delivered_rows(last.model, model.clients):
            ledger.append_once(part, at)
        body = ModelBody(
            model=model.digest,
            parent=model.parent,
            run=model.run,
            round=model.round,
            status="serving",
        )
        ledger.append_once(body, at)  # last: with it, the model's rows are complete
        journal.save_ledger_head(ledger.head())


def _promote(
    store: Store, lineage: Sequence[Round], registry: ModelRegistry, known: set[str]
) -> Model:
    """Register the last model, with the nearest registered model before it as its parent."""
    last, serving = lineage[-1], registry.serving(store.name)
    before = [place for place, r in enumerate(lineage) if r.model in known]
    own = lineage[before[-1] + 1 :] if before else lineage
    candidate = Candidate(
        digest=last.model,
        parent=lineage[before[-1]].model if before else None,
        run=store.name,
        round=last.number,
        clients=tuple(sorted({each.client for r in own for each in r.clients})),
    )
    return registry.promote(
        candidate, parse_time(last.at), replaces=serving.digest if serving else None
    )
