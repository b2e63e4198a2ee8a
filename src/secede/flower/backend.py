"""A live Flower federation as the backend of an erasure, with what its store recorded.

The server has no updates, so the guard measures from the global model, with what was recorded of
the leaver's last update: share, digest and, unless updates are hidden, distance from the mean. The
leaver computes the reference itself from its own update and that share.
"""

from __future__ import annotations

import logging
import platform
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from statistics import median_low

import torch
from flwr.serverapp.strategy import FedAvg
from torch import nn

from secede import __version__
from secede import state as states
from secede.erasure import (
    BY_OPERATOR,
    WRONG_SAMPLES,
    FederationBackend,
    Plan,
    Scope,
    Setting,
    SignedReading,
    Software,
    Tally,
    UpdateTrace,
    collect,
    is_name,
    last_layer,
)
from secede.errors import ConfigError, GuardError, SecedeError, SilentError
from secede.federation.engine import Cost, OwnState, Update
from secede.flower.protocol.messages import CanaryReply
from secede.flower.rounds import FlowerEngine, LiveEngine, RecordedUpdate, Transport
from secede.flower.secagg import SecAggSettings, SecureEngine
from secede.flower.storage import Contribution, OpenedSums, Store, register
from secede.seeding import seeded
from secede.state import State
from secede.unlearning import CountRight, ReadCanaries, Server, Situation

logger = logging.getLogger(__name__)

IN_DATABASE = (
    "Flower's SuperLink keeps messages in its own database, where pieces of updates may stay "
    "after they were deleted: this receipt says nothing of it."
)
RETURNED_OPENLY = (
    "What the client returned came to the server in the open, once: together with the earlier "
    "model it reveals roughly where the client's own last update lay."
)
GROWTH = 10.0  # a weight above so many times the recorded one is not taken for honest


class FlowerBackend(FederationBackend):
    """The federation whose rounds a store recorded, over a grid."""

    scenario = ""
    count_variance = 2.0  # lost and gained, each rounded to one of two neighbours 2 apart

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
        leaver_gone: bool = False,
    ) -> None:
        self._store, self._seed = store, seed
        self._by_operator, self._leaver_gone = by_operator, leaver_gone
        self._hidden = isinstance(strategy, SecAggSettings)
        mean = strategy.strategy if isinstance(strategy, SecAggSettings) else strategy
        self._strategy = type(mean).__name__
        self.device = torch.device("cpu")
        nodes, rounds = store.clients(), store.log.rounds()
        last = rounds[-1]
        self._last_number = last.number
        self.clients = {node.name: number for number, node in enumerate(nodes)}
        weights = {c.client: c.weight for r in rounds if not r.erased for c in r.clients}
        self._weights = {n: weights[node.name] for n, node in enumerate(nodes)}
        self._round_timeout, self._online_timeout = round_timeout, online_timeout
        self._round: tuple[str, Sequence[Contribution], Sequence[Update]] = ("", (), ())
        digests = {c.client: c.digest for r in rounds for c in r.clients}
        engine: Callable[..., LiveEngine] = (
            partial(SecureEngine, masked=strategy, opened=OpenedSums(store.path))
            if isinstance(strategy, SecAggSettings)
            else partial(FlowerEngine, strategy=strategy)
        )
        self.engine = engine(
            transport=transport,
            clients=dict(enumerate(nodes)),
            template=store.template,
            home=store.identity,
            config=next((r.config for r in reversed(rounds) if not r.erased), {}),
            own={
                n: RecordedUpdate(last.share(node.name), digests[node.name])
                for n, node in enumerate(nodes)
            },
            records_rounds=False,  # the serving model's updates count until another model serves
            round_timeout=round_timeout,
            online_timeout=online_timeout,
            first_round=last.number,
            passes=passes,
            max_weights={n: GROWTH * weight for n, weight in self._weights.items()},
            on_round=self._keep_round,
        )
        trained = [r for r in store.log.lineage() if not r.erased]
        self.training_rounds = len(trained)
        self._trained = [(r.server_round or r.number, r.config) for r in trained]
        self._samples_by_weight = dict[int, float]()  # as each client counted last
        self.classes_told = store.classes is not None
        self.classes = store.classes or _outputs(self._fresh("template"))

    def situation(self, client: str) -> Situation:
        """Return what there is: no history and no data, but single updates unless hidden.

        A leaver that is offline may come until its deadline, unless it is gone for good.
        """
        return Situation(leaver_online=not self._leaver_gone, single_updates=not self._hidden)

    def scope(self, client: str) -> Scope:
        """Return what `client` contributed, as recorded."""
        return register.scope(self._store, client)

    def server(self, client: str, retained: Sequence[str], state: State, timeout: float) -> Server:
        """Return the server that a method works with."""
        leaver, trace = self.clients[client], self.update_trace(client)
        # Two sums from one model would reveal single updates: each erasure has its own fresh model.
        name = ("retraining", client, self._last_number) if self._hidden else ("retraining",)
        return Server(
            engine=replace(
                self.engine, task_timeouts={leaver: timeout}, excluded=frozenset({leaver})
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
        """Return what was recorded of the client's update in the last mean."""
        last = self._store.last_round()
        for contribution in last.clients if last else ():
            if last and contribution.client == client:
                return UpdateTrace(
                    weight=last.share(client),
                    distance=contribution.distance,
                    digest=contribution.digest,
                )
        return None

    def recorded_digests(self, client: str) -> tuple[str, ...]:
        """Return the digests of the client's recorded updates, the oldest first."""
        every = (c for r in self._store.log.rounds() for c in r.clients)
        return tuple(c.digest for c in every if c.client == client and c.digest)

    def fresh_model(self, number: int) -> nn.Module:
        """Return the n-th fresh model."""
        return self._fresh("guard", number)

    def name_request(self, signed: bytes) -> None:
        """Show clients the request, as it was signed, with every task."""
        self.engine = replace(self.engine, request=signed.decode())

    def show_plan(self, plan: Plan) -> None:
        """Send the plan with each local step."""
        self.engine = replace(self.engine, plan=plan.content().decode())

    def set_timeout(self, seconds: float) -> None:
        """Give every retained client at most so many seconds for a reply or a round."""
        self.engine = replace(
            self.engine,
            round_timeout=min(self._round_timeout, seconds),
            online_timeout=min(self._online_timeout, seconds),
        )

    def require_quorum(self, check: Callable[[Sequence[str]], None]) -> None:
        """Open no sum of clients for which `check` raises."""
        self.engine = replace(self.engine, check_quorum=check)

    def set_retraining(self, retraining: bool) -> None:
        """Repeat numbers and configs of the training's rounds while a model is retrained."""
        self.engine = replace(self.engine, repeated=self._trained if retraining else ())

    def tally(self, clients: Sequence[int], state: State, before: State | None = None) -> Tally:
        """Let clients count at the same time, and check each reply.

        Weights may count batches or steps, so a client's samples for each unit of its weight are
        held against the median. How many classes there are is what most of them say, unless told.
        """
        replies = self.engine.ask_all(clients, CountRight(before), global_state=state)
        sound = collect(clients, replies.of)
        left_out = dict(sound.left_out)
        if sound.counts and not self.classes_told:
            lengths = Counter(len(counts.samples) for counts in sound.counts.values())
            ((self.classes, _),) = lengths.most_common(1)
        for client, counts in sound.counts.items():
            self._samples_by_weight[client] = sum(counts.samples) / self._weights[client]
        for client in sound.counts:
            usual = median_low(self._samples_by_weight.values())
            if self._samples_by_weight[client] > GROWTH * usual:
                left_out[client] = WRONG_SAMPLES
        valid = {client: c for client, c in sound.counts.items() if client not in left_out}
        return Tally(valid, left_out, replies.cost)

    def read_canaries(
        self, client: str, state: State, plan: Plan, model: str
    ) -> tuple[SignedReading, Cost]:
        """Let a client read its canaries on its own premises; what it sends is checked later.

        A signature counts only where the client's key is known here; else it is dropped.
        """
        number = self.clients[client]
        engine = replace(self.engine, task_timeouts={number: plan.leaver_timeout})
        try:
            reply, cost = engine.ask(number, ReadCanaries(), global_state=state)
        except SilentError:
            raise
        except SecedeError as error:  # whatever it sent, no erasure depends on it
            raise GuardError(str(error)) from error
        if not isinstance(reply, CanaryReply):
            raise GuardError(f"client {client!r} sent no reading of its canaries")
        signed = reply.signed
        if signed.envelope is not None and client not in self._store.home.client_keys():
            logger.info(f"client {client!r} signs with a key that is not known here")
            signed = signed.model_copy(update={"envelope": None})
        return signed, cost

    def aggregated(self, shares: Mapping[str, float]) -> None:
        """Record whose updates went into the last round's mean."""
        start, contributions, _ = self._round
        used = [
            contribution.model_copy(update={"weight": shares[contribution.client]})
            for contribution in contributions
            if shares.get(contribution.client, 0.0) > 0
        ]
        self._store.pending.put(start, used)

    def trained(self, start: str, state: State) -> None:
        """Record each update's distance from the mean, and discard the updates."""
        round_start, _, updates = self._round
        self._round = ("", (), ())
        if round_start != start:  # there was no round
            return
        names = {number: name for name, number in self.clients.items()}
        # Under SecAgg+ every update is the mean, so its distance says nothing of a client's own.
        distances = {
            names[u.client]: None if self._hidden else self._store.distance(u.state, state)
            for u in updates
        }
        self._store.pending.put(
            start,
            [
                contribution.model_copy(update={"distance": distances[contribution.client]})
                for contribution in self._store.pending.get(start)
            ],
        )

    def training(self) -> dict[str, Setting]:
        """Return the config of the clients' own training function, and the seed."""
        config = {
            name: value if isinstance(value, bool | int | float) else str(value)[:300] or "none"
            for name, value in self.engine.config.items()
            if is_name(name)
        }
        return {**config, "seed": self._seed}

    def limits(self, client: str) -> tuple[str, ...]:
        """Return what the home does not cover, and that an operator asked, if so."""
        limits = (IN_DATABASE,) if self._store.engine == "flower" else ()
        limits = (*limits, RETURNED_OPENLY) if self._hidden else limits
        return (*limits, BY_OPERATOR) if self._by_operator else limits

    def software(self) -> Software:
        """Return versions and environment."""
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
        """Return nothing: the server keeps only weights and digests of a client."""
        return ()

    def roll_back(self) -> None:
        """Discard the rounds that led nowhere; clients keep their updates of the serving model."""
        self._store.pending.drop()

    def commit(self, client: str, trained_from: str | None) -> None:
        """Record the model that serves now as the last round, with the clients that trained it."""
        store = self._store
        last = store.last_round()
        serving = store.serving_model()
        if last is not None and serving is not None and last.model != serving.digest:
            state, _ = states.load(store.home.model_path(serving.digest))
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

    def _keep_round(
        self, start: str, contributions: Sequence[Contribution], updates: Sequence[Update]
    ) -> None:
        self._round = (start, contributions, updates)

    def _fresh(self, *name: str | int) -> nn.Module:
        with seeded(self._seed, "model", *name):
            return self._store.load_model()


def _outputs(model: nn.Module) -> int:
    """Return the number of classes: the outputs of the network's last linear layer."""
    layer = last_layer(model)
    if not isinstance(layer, nn.Linear):
        raise ConfigError(
            f"{type(model).__name__} has no linear layer whose outputs are the classes: give their "
            "number as Store(..., classes=), on NVFlare as FederationController(..., classes=)"
        )
    return layer.out_features
