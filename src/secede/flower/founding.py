"""Makes a home of what was recorded: who takes part, the serving model, the server's key.

Done at the beginning of each erasure; doing it again changes nothing. What was trained since the
last time is registered as one step, carried by all who contributed to it.
"""

from __future__ import annotations

from collections.abc import Sequence

from secede import files
from secede.erasure.bodies import DeliveredBody, ModelBody
from secede.erasure.canonical import canonical
from secede.erasure.desk import NAMES
from secede.erasure.fields import moment
from secede.erasure.home import Client, Federation, Home
from secede.erasure.journal import Journal
from secede.erasure.ledger import Ledger
from secede.erasure.lineage import Lineage
from secede.erasure.predicate import Scope
from secede.erasure.registry import Candidate
from secede.errors import ConfigError, RecordError
from secede.flower.log import Round
from secede.flower.store import Store


def check(store: Store) -> None:
    """Raise if nothing was recorded that somebody could be erased from."""
    if store.last() is None:
        raise ConfigError(
            f"{store.path} holds no completed round: train first, with "
            f"secede.{store.engine} recording it (docs/{store.engine}.md)"
        )


def found(store: Store) -> Home:
    """Set up, or bring up to date, the home of a recorded federation; whoever calls holds it."""
    check(store)
    rounds = store.log.rounds()
    clients = _clients(store, rounds)
    if len(clients) < 2:
        raise ConfigError(f"only {clients[0].name!r} ever contributed: nobody would be left")
    home = store.home
    home.make_server_key()
    recipe = {"engine": store.engine, "strategy": rounds[-1].strategy, "weights": "weighted mean"}
    files.write_bytes(home.path / "recipe.json", canonical(recipe) + b"\n")
    _register(store, rounds)
    described = Federation(
        name=store.name,
        run=store.name,
        clients=clients,
        recipe=files.digest(home.path / "recipe.json"),
    )
    if (home.path / "federation.json").exists() and home.federation.name != store.name:
        raise RecordError(
            f"{home.path} is the home of {home.federation.name!r}, not of {store.name!r}"
        )
    home.describe(described)
    return home


def scope(store: Store, client: str) -> Scope:
    """Say what a client put in by training, before and after erasures; their rounds come later."""
    rounds = store.log.rounds()
    trained = [r for r in rounds if not r.erased]
    return _scope(rounds, client, trained[-1].share(client) if trained else 0.0)


def _scope(rounds: Sequence[Round], client: str, weight: float) -> Scope:
    """Say what a client put in by training; what it put into post-training is added elsewhere."""
    numbers = [r.number for r in rounds if any(c.client == client for c in r.clients)]
    trained = [r for r in rounds if not r.erased]
    numbers_trained = [r.number for r in trained if r.number in numbers] or numbers
    return Scope(
        first_round=numbers_trained[0],
        last_round=numbers_trained[-1],
        rounds=len(numbers_trained),
        weight=weight,
    )


def _weights(rounds: Sequence[Round]) -> dict[str, float]:
    """Return every client's share, were all of them in one mean, by its last recorded weight."""
    last = {c.client: c.weight for r in rounds if not r.erased for c in r.clients}
    total = sum(last.values())
    return {name: weight / total for name, weight in last.items()}


def _clients(store: Store, rounds: Sequence[Round]) -> tuple[Client, ...]:
    weights = _weights(rounds)
    return tuple(
        Client(
            name=node.name,
            number=number,
            scope=_scope(rounds, node.name, weights.get(node.name, 0.0)),
        )
        for number, node in enumerate(store.clients())
    )


def _register(store: Store, rounds: Sequence[Round]) -> None:
    """Put what was trained last into service, unless it is known already."""
    home, last, run = store.home, rounds[-1], store.name
    with Journal(home.journal), Lineage(home.registry) as registry:
        known = {model.digest for model in registry.models()}
        if last.model in known:  # it serves, or an erasure that was cut short has replaced it
            return
        serving = registry.serving(run)
        parent = serving.digest if serving else None
        begun = max((n for n, r in enumerate(rounds) if r.model == parent), default=-1)
        names = {each.client for r in rounds[begun + 1 :] for each in r.clients}
        at = moment(last.at)
        candidate = Candidate(
            digest=last.model,
            parent=parent,
            run=run,
            round=last.number,
            clients=tuple(sorted(names)),
        )
        carried = registry.promote(candidate, at).clients
    with Ledger(home.ledger) as ledger:
        body = ModelBody(
            model=last.model, parent=parent, run=run, round=last.number, status="serving"
        )
        ledger.append_once("model", body, at)
        for start in range(0, len(carried), NAMES):
            part = DeliveredBody(model=last.model, clients=carried[start : start + NAMES])
            ledger.append_once("delivered", part, at)
