"""Makes a home of what was recorded: who takes part, the serving model, the server's key.

Done at the beginning of each erasure; doing it again changes nothing. What was trained since the
last time is registered as one step, carried by all who contributed to it; its parent is the
registered model that the training began with, none if it began from scratch.
"""

from __future__ import annotations

from collections.abc import Sequence

from secede import files
from secede.erasure.canonical_json import to_canonical
from secede.erasure.documents.ledger_rows import ModelBody
from secede.erasure.documents.receipt import Scope
from secede.erasure.storage.home import Client, Federation, Home
from secede.erasure.storage.journal import Journal
from secede.erasure.storage.ledger import Ledger
from secede.erasure.storage.model_registry import Candidate, Model, ModelRegistry
from secede.erasure.types import parse_time
from secede.erasure.workflow.session import delivered_rows
from secede.errors import ConfigError, RecordError
from secede.flower.storage.round_log import Round
from secede.flower.storage.store import Store
from secede.text import short_digest


def check_recorded(store: Store) -> None:
    """Raise if nothing was recorded that somebody could be erased from."""
    if store.last_round() is None:
        raise ConfigError(
            f"{store.path} holds no completed round: train first, with "
            f"secede.{store.engine} recording it (docs/{store.engine}.md)"
        )


def register_federation(store: Store) -> Home:
    """Set up, or bring up to date, the home of a recorded federation; whoever calls holds it."""
    check_recorded(store)
    store.trainings.check_finished()
    made = store.log.lineage()
    clients = _clients(store, made)
    if len(clients) < 2:
        raise ConfigError(f"only {clients[0].name!r} ever contributed: nobody would be left")
    home = store.home
    if (home.path / "federation.json").exists() and home.federation.name != store.name:
        raise RecordError(
            f"{home.path} is the home of {home.federation.name!r}, not of {store.name!r}"
        )
    home.make_server_key()
    recipe = {"engine": store.engine, "strategy": made[-1].strategy, "weights": "weighted mean"}
    files.write_bytes(home.path / "recipe.json", to_canonical(recipe) + b"\n")
    _register(store, made)
    described = Federation(
        name=store.name,
        run=store.name,
        clients=clients,
        recipe=files.digest(home.path / "recipe.json"),
    )
    home.describe(described)
    return home


def scope(store: Store, client: str) -> Scope:
    """Say what a client put in by training, before and after erasures; their rounds come later."""
    made = store.log.lineage()
    trained = [r for r in made if not r.erased]
    return _scope(made, client, trained[-1].share(client) if trained else 0.0)


def _scope(rounds: Sequence[Round], client: str, weight: float) -> Scope:
    """Say what a client put in by training; what it put into post-training is added elsewhere."""
    joined = [r for r in rounds if any(c.client == client for c in r.clients)]
    numbers = [r.number for r in joined if not r.erased] or [r.number for r in joined]
    return Scope(first_round=numbers[0], last_round=numbers[-1], rounds=len(numbers), weight=weight)


def _weights(rounds: Sequence[Round]) -> dict[str, float]:
    """Return every client's share, were all of them in one mean, by its last recorded weight."""
    last = {c.client: c.weight for r in rounds if not r.erased for c in r.clients}
    total = sum(last.values())
    return {name: weight / total for name, weight in last.items()}


def _clients(store: Store, made: Sequence[Round]) -> tuple[Client, ...]:
    """Describe all who ever took part; who has no share in the model, by what it did before."""
    weights, carried = _weights(made), {c.client for r in made for c in r.clients}
    every = store.log.rounds()
    return tuple(
        Client(
            name=node.name,
            number=number,
            scope=_scope(
                made if node.name in carried else every, node.name, weights.get(node.name, 0.0)
            ),
        )
        for number, node in enumerate(store.clients())
    )


def _register(store: Store, made: Sequence[Round]) -> None:
    """Put what was trained last into service, unless it is known already; then the ledger's rows.

    A kill between the two leaves a model without rows: they are appended at the next start.
    """
    home, last = store.home, made[-1]
    with Journal(home.journal), ModelRegistry(home.registry) as registry:
        known = {model.digest: model for model in registry.models()}
        model = known.get(last.model)
        if model is None:
            model = _promote(store, made, registry, set(known))
    if model.status == "superseded":
        raise RecordError(
            f"the last round ended with model {short_digest(last.model)}, which served before and "
            "was replaced: train for another round"
        )
    # An erasure that was cut short has replaced it, or one that was not wrote the rows of its own.
    if model.status == "retired" or last.erased:
        return
    with Ledger(home.ledger) as ledger:
        body = ModelBody(
            model=model.digest,
            parent=model.parent,
            run=model.run,
            round=model.round,
            status="serving",
        )
        at = parse_time(last.at)
        ledger.append_once("model", body, at)
        for part in delivered_rows(last.model, model.clients):
            ledger.append_once("delivered", part, at)


def _promote(
    store: Store, made: Sequence[Round], registry: ModelRegistry, known: set[str]
) -> Model:
    """Register the last model, with the nearest registered one that it was trained from."""
    last, serving = made[-1], registry.serving(store.name)
    before = [place for place, r in enumerate(made) if r.model in known]
    own = made[before[-1] + 1 :] if before else made
    candidate = Candidate(
        digest=last.model,
        parent=made[before[-1]].model if before else None,
        run=store.name,
        round=last.number,
        clients=tuple(sorted({each.client for r in own for each in r.clients})),
    )
    return registry.promote(
        candidate, parse_time(last.at), replaces=serving.digest if serving else None
    )
