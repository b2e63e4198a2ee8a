"""A live Flower federation as the ground of an erasure, with the store for its memory.

The server has no update of anybody, so the guard measures from the global model, with what was
written down of the leaver's: share, digest, and, unless updates are hidden, how far it lay from the
mean. The leaver computes the reference itself from its own update and that share.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version

import torch
from flwr.serverapp.strategy import FedAvg
from torch import nn

from secede import __version__
from secede import state as states
from secede.erasure.backend import FederationBackend
from secede.erasure.defences import gate, weight_layout
from secede.erasure.defences.gate import Tally
from secede.erasure.defences.guard import UpdateTrace
from secede.erasure.defences.reply_checks import SAMPLES
from secede.erasure.documents.receipt import BY_OPERATOR, Scope, Setting, Software
from secede.erasure.types import is_name
from secede.errors import ConfigError
from secede.federation.engine import OwnState, Update
from secede.flower.rounds.engine import FlowerEngine, LiveEngine
from secede.flower.rounds.task_requests import CollectedReplies, RecordedUpdate
from secede.flower.rounds.transport import Transport
from secede.flower.secagg.engine import SecureEngine
from secede.flower.secagg.legacy_api import SecAggSettings
from secede.flower.secagg.opened_sums import OpenedSums
from secede.flower.storage import register
from secede.flower.storage.round_log import Contribution
from secede.flower.storage.store import Store
from secede.seeding import seeded
from secede.state import State
from secede.unlearning.client_tasks import CountRight
from secede.unlearning.method import Server
from secede.unlearning.registry import Situation

IN_DATABASE = (
    "Flower's SuperLink keeps messages in its own database, where pieces of updates may stay "
    "after they were deleted: this receipt says nothing of it."
)
RETURNED_OPENLY = (
    "What the client returned came to the server in the open, once: beside the model from before "
    "it tells about where the client's own last update lay."
)


GROWTH = 10.0  # times the weight that was recorded: nobody's data grows more between two rounds


class FlowerBackend(FederationBackend):
    """The federation that a store remembers, over a grid."""

    scenario = ""

    def __init__(
        self,
        transport: Transport,
        strategy: FedAvg | SecAggSettings,
        store: Store,
        *,
        round_timeout: float = 3600.0,
        online_timeout: float = 120.0,
        passes: int = 1,
        seed: int = 0,
        by_operator: bool = False,
        gone: bool = False,
    ) -> None:
        self._store, self._seed = store, seed
        self._by_operator, self._gone, self._hidden = (
            by_operator,
            gone,
            isinstance(strategy, SecAggSettings),
        )
        used = strategy.strategy if isinstance(strategy, SecAggSettings) else strategy
        self._strategy = type(used).__name__
        self.device = torch.device("cpu")
        known, rounds = store.clients(), store.log.rounds()
        last = rounds[-1]
        self._last = last.number
        self.clients = {node.name: number for number, node in enumerate(known)}
        recorded = {each.client: each.weight for r in rounds if not r.erased for each in r.clients}
        self._weights = {n: recorded[node.name] for n, node in enumerate(known)}
        self._round_timeout, self._online_timeout = round_timeout, online_timeout
        self._round: tuple[str, Sequence[Contribution], Sequence[Update]] = ("", (), ())
        digests = {each.client: each.digest for r in rounds for each in r.clients}
        engine: Callable[..., LiveEngine] = (
            partial(SecureEngine, masked=strategy, opened=OpenedSums(store.path))
            if isinstance(strategy, SecAggSettings)
            else partial(FlowerEngine, strategy=strategy)
        )
        self.engine = engine(
            transport=transport,
            clients=dict(enumerate(known)),
            like=store.template,
            home=store.identity,
            config=next((r.config for r in reversed(rounds) if not r.erased), {}),
            own={
                n: RecordedUpdate(last.share(c.name), digests[c.name]) for n, c in enumerate(known)
            },
            remembers=False,  # what belongs to the serving model stays until one is settled on
            round_timeout=round_timeout,
            online_timeout=online_timeout,
            first_round=last.number,
            passes=passes,
            max_weights={n: GROWTH * weight for n, weight in self._weights.items()},
            note=self._note,
        )
        self.training_rounds = sum(not r.erased for r in store.log.lineage())
        self.classes_told = store.classes is not None
        self.classes = store.classes or _outputs(self._fresh("template"))

    def situation(self, client: str) -> Situation:
        """Say what there is: no history and no data, but each round's single updates if open.

        A leaver that is offline may come until its deadline, unless it is known to be gone.
        """
        return Situation(leaver_online=not self._gone, single_updates=not self._hidden)

    def scope(self, client: str) -> Scope:
        """Say what `client` put in, as it was recorded."""
        return register.scope(self._store, client)

    def server(self, client: str, retained: Sequence[str], state: State, seconds: float) -> Server:
        """Return what a method finds."""
        leaver, trace = self.clients[client], self.update_trace(client)
        # Two sums from one start would tell about single updates: each erasure has its own.
        name = ("retraining", client, self._last) if self._hidden else ("retraining",)
        return Server(
            engine=replace(
                self.engine, task_timeouts={leaver: seconds}, hidden=frozenset({leaver})
            ),
            global_state=state,
            leaver=leaver,
            retained=tuple(self.clients[name] for name in retained),
            fresh_state=lambda: {**self._fresh(*name).state_dict()},
            fresh_model=lambda: self._fresh("template"),
            weight=None if trace is None else trace.weight,
        )

    def last_update(self, client: str) -> OwnState | None:
        """Return nothing: the server keeps no update."""
        return None

    def update_trace(self, client: str) -> UpdateTrace | None:
        """Return what was written down of the client's update in the last mean."""
        found = self._store.last_round()
        for each in found.clients if found else ():
            if found and each.client == client:
                share = found.share(client)
                return UpdateTrace(weight=share, distance=each.distance, digest=each.digest)
        return None

    def recorded_digests(self, client: str) -> tuple[str, ...]:
        """Return the digests of the client's updates that were recorded."""
        every = (each for r in self._store.log.rounds() for each in r.clients)
        return tuple(each.digest for each in every if each.client == client and each.digest)

    def fresh_model(self, number: int) -> nn.Module:
        """Return the n-th fresh model."""
        return self._fresh("guard", number)

    def set_timeout(self, seconds: float) -> None:
        """Give every retained client at most so long for an answer or a round."""
        self.engine = replace(
            self.engine,
            round_timeout=min(self._round_timeout, seconds),
            online_timeout=min(self._online_timeout, seconds),
        )

    def require_quorum(self, enough: Callable[[Sequence[str]], None]) -> None:
        """Let no sum be opened of those for whom `enough` raises."""
        self.engine = replace(self.engine, enough=enough)

    def tally(self, clients: Sequence[int], state: State) -> Tally:
        """Let clients count at the same time; the server looks at each answer as at any other."""
        found = self.engine.ask_all(clients, CountRight(), global_state=state)
        tally = gate.tally(CollectedReplies(found), clients, state)
        left_out = dict(tally.left_out)
        for client, counts in tally.counts.items():
            if sum(counts.samples) > GROWTH * self._weights[client]:
                left_out[client] = SAMPLES
        sound = {client: c for client, c in tally.counts.items() if client not in left_out}
        return Tally(sound, left_out, found.cost)

    def aggregated(self, shares: Mapping[str, float]) -> None:
        """Write down whose updates went into the last round's mean."""
        start, came, _ = self._round
        used = [
            each.model_copy(update={"weight": shares[each.client]})
            for each in came
            if shares.get(each.client, 0.0) > 0
        ]
        self._store.pending.put(start, used)

    def trained(self, start: str, state: State) -> None:
        """Write down how far the updates lie from what came of them, and let go of them."""
        begun, _, updates = self._round
        self._round = ("", (), ())
        if begun != start:  # it took no round
            return
        names = {number: name for name, number in self.clients.items()}
        # Under SecAgg+ every update is the mean, which tells nothing of a client's own.
        away = {
            names[u.client]: None if self._hidden else self._store.distance(u.state, state)
            for u in updates
        }
        noted = self._store.pending.get(start)
        self._store.pending.put(
            start, [each.model_copy(update={"distance": away[each.client]}) for each in noted]
        )

    def training(self) -> dict[str, Setting]:
        """Return what the clients' own functions are told in a round, and the seed."""
        told = {
            name: value if isinstance(value, bool | int | float) else str(value)[:300] or "none"
            for name, value in self.engine.config.items()
            if is_name(name)
        }
        return {**told, "seed": self._seed}

    def limits(self, client: str) -> tuple[str, ...]:
        """Say who asked, where it was not the client, and what lies outside of the home."""
        elsewhere = (IN_DATABASE,) if self._store.engine == "flower" else ()
        elsewhere = (*elsewhere, RETURNED_OPENLY) if self._hidden else elsewhere
        return (*elsewhere, BY_OPERATOR) if self._by_operator else elsewhere

    def software(self) -> Software:
        """Return versions."""
        return Software(
            versions={
                "secede": __version__,
                "python": platform.python_version(),
                "torch": torch.__version__,
                **{name: version(name) for name in self._store.packages},
            },
            environment={
                "engine": self._store.engine,
                "strategy": self._strategy,
                **({"secure-aggregation": "SecAgg+"} if self._hidden else {}),
            },
        )

    def holdings(self, client: str) -> tuple[str, ...]:
        """Return nothing: what the server keeps of a client are its weights and digests."""
        return ()

    def roll_back(self) -> None:
        """Forget the rounds that led nowhere; clients keep the update that the model holds."""
        self._store.pending.drop()

    def commit(self, client: str, trained_from: str | None) -> None:
        """Go on from the model that serves now, with those who trained it last."""
        store = self._store
        last = store.last_round()
        serving = store.serving_model()
        if last is not None and serving is not None and last.model != serving.digest:
            state, _ = states.load(store.home.model(serving.digest))
            store.record_round(
                {name: state[name] for name in store.template},
                run=last.run,
                strategy=self._strategy,
                start=trained_from or serving.digest,
                clients=store.pending.get(trained_from),
                config=self.engine.config,
                erased=client,
                number=serving.round,
                secure=self._hidden,
            )
        store.pending.drop()

    def _note(self, start: str, came: Sequence[Contribution], updates: Sequence[Update]) -> None:
        self._round = (start, came, updates)

    def _fresh(self, *name: str | int) -> nn.Module:
        with seeded(self._seed, "model", *name):
            return self._store.load_model()


def _outputs(model: nn.Module) -> int:
    """Return how many classes a network tells apart: the outputs of its last linear layer."""
    found = weight_layout.last_layer(model)
    if not isinstance(found, nn.Linear):
        raise ConfigError(
            f"{type(model).__name__} has no linear layer to tell the number of classes from: give "
            "it as Store(..., classes=), on NVFlare as FederationController(..., classes=)"
        )
    return found.out_features
