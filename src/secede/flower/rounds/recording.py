"""A strategy that remembers: after every aggregate, who contributed with which weight and digest.

It stores the global model, and never an update. Training that was cut short, by a kill of the
ServerApp or the SuperLink, goes on after its last completed round when it is started again.
"""

from __future__ import annotations

import base64
import logging
import os
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result, Strategy
from torch import Tensor

from secede import state as states
from secede.errors import ConfigError, GuardError, StateError
from secede.flower.protocol import arrays, messages
from secede.flower.protocol.nodes import Node, Roster
from secede.flower.rounds import supported_strategies
from secede.flower.rounds.grid import AdmissionGrid, DeadlineGrid, with_fast_polls
from secede.flower.rounds.transport import reply_error as reason
from secede.flower.storage.round_log import Contribution
from secede.flower.storage.store import Store
from secede.state import State

logger = logging.getLogger(__name__)


def check_update(reply: Message, found: FedAvg, like: State) -> tuple[dict[str, Tensor], float]:
    """Return a reply's state and its weight in the mean; GuardError if it cannot be in one."""
    record = supported_strategies.update_of(reply)
    if record is None or len(reply.content.metric_records) != 1:
        raise GuardError("expected one record of arrays and one of metrics")
    weight = supported_strategies.weight_of(reply, found)
    if not weight or weight != int(weight):
        raise GuardError(f"its {found.weighted_by_key!r} is no whole number above 0")
    state = arrays.to_state(record, like, shared=True)
    try:
        states.check_finite(state, "its update")
    except StateError as error:
        raise GuardError(str(error)) from error
    return state, weight


def differing_replies(replies: Mapping[int, Message]) -> set[int]:
    """Return who names its records and metrics otherwise than most: they cannot be averaged."""
    forms = {node: _form(reply) for node, reply in replies.items()}
    if not forms:
        return set()
    ((usual, _),) = Counter(forms.values()).most_common(1)
    return {node for node, form in forms.items() if form != usual}


def _form(reply: Message) -> Hashable:
    return (
        *sorted(reply.content.array_records),
        *(
            (key, name, len(value) if isinstance(value, list) else -1)
            for key, record in sorted(reply.content.metric_records.items())
            for name, value in sorted(record.items())
        ),
    )


WAIT_SECONDS = 600.0
_BYTES = "base64:"

_THREADS = 4

Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]


def recording(
    strategy: Strategy,
    store: Store,
    *,
    wait_seconds: float = WAIT_SECONDS,
    from_scratch: bool = False,
) -> Recording:
    """Return a strategy that does what `strategy` does and lets clients be erased later.

    Anything but a weighted mean is refused by name. It waits for clients for `wait_seconds` before
    each round, and not for ever. A training that was cut short goes on where it was; after one that
    was finished, the next goes on from its model, unless it is started with another model of this
    store. `from_scratch` begins with the weights that it is started with, however the last ended.
    """
    if isinstance(strategy, Recording):
        if strategy.store.path != store.path:
            raise ConfigError(
                f"the strategy records into {strategy.store.path} already, not {store.path}: give "
                "the one inside"
            )
        return strategy
    return Recording(
        supported_strategies.check_strategy(strategy),
        store,
        wait_seconds=wait_seconds,
        from_scratch=from_scratch,
    )


@dataclass(frozen=True)
class HashedUpdate:
    """An update, while its round lasts."""

    state: states.State
    digest: str


class Recording(Strategy):
    """A weighted mean whose rounds are written down."""

    def __init__(
        self, inner: FedAvg, store: Store, *, wait_seconds: float, from_scratch: bool = False
    ) -> None:
        self.inner, self.store = inner, store
        self._wait_seconds, self._from_scratch = wait_seconds, from_scratch
        self._done = 0  # rounds of this training before it was cut short
        self._asked = dict[int, Node]()
        self._known: dict[str, Node] | None = None  # who has contributed so far, by identity
        self._digests = dict[str, str]()  # of their last recorded updates, by identity
        self._told = set[tuple[int, str]]()  # who was said to stay out, and why
        self._start, self._config, self._run = "", dict[str, Any](), ""
        self._last = dict[str, bytes]()  # the arrays of the model with digest `_start`

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Evaluate | None = None,
    ) -> Result:
        """Train from where the last training ended, or was cut short, unless from scratch."""
        with self.store.held():
            self._known = None  # an erasure may have come between two trainings
            given = states.digest(_model(initial_arrays, self.store))
            on = self.store.begin(num_rounds, given=given, from_scratch=self._from_scratch)
            self._done = min(on.rounds, num_rounds) if on else 0
            begin = on.arrays if on else initial_arrays
            self._start, self._last = (on.model if on else None) or given, _bytes(begin)
            result = super().start(
                with_fast_polls(grid),
                begin,
                num_rounds - self._done,
                timeout,
                train_config,
                evaluate_config,
                None if evaluate_fn is None else self._numbered(evaluate_fn),
            )
            if num_rounds == self._done:
                result.arrays = begin
            self.store.finish()
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Let the strategy choose among the clients that have not left."""
        if not self._is_last(arrays):  # else it was hashed when it was written
            self._start = states.digest(_model(arrays, self.store))
        self.store.check_start(self._start)
        shown = self._admitted(grid)
        waiting = self._waiting(shown, "train")
        made = list(self.inner.configure_train(server_round + self._done, arrays, config, waiting))
        chosen = {message.metadata.dst_node_id for message in made}
        if strangers := chosen - shown.seen.keys():
            raise ConfigError(
                f"strategy {type(self.inner).__name__!r} sends to node {min(strangers)}, which "
                "takes no part: choose among grid.get_node_ids()"
            )
        self._asked = {node: shown.seen[node] for node in chosen}
        for message in made:
            who = self._asked[message.metadata.dst_node_id].identity
            messages.add_home(message, self.store.identity, self._digests.get(who))
        self._config = config_to_json(config)
        self._run = str(made[0].metadata.run_id) if made else ""
        return made

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Let the strategy average, and write down whom."""
        found = [r for r in replies if r.has_error() or r.metadata.src_node_id in self._asked]
        supported_strategies.check_in_the_open(found)
        for reply in found:
            if reply.has_error() and (node := self._asked.get(reply.metadata.src_node_id)):
                line = reason(reply)
                logger.info(f"left out of the round: client {node.name!r}: {line}")
        # Flower samples in random order, and a sum of floats depends on its order.
        found.sort(key=self._place)
        with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as pool:
            vetted = self._vetted([reply for reply in found if not reply.has_error()], pool)
            sound = [reply for reply, _, _ in vetted]
            found = [reply for reply in found if reply.has_error()] + sound
            # Hashing leaves the interpreter to the mean, and needs as long.
            hashing = [pool.submit(_hashed, state) for _, state, _ in vetted]
            aggregate, metrics = self.inner.aggregate_train(server_round + self._done, found)
            if aggregate is None:
                logger.info(f"round {server_round + self._done}: no update came, all stays")
                return aggregate, metrics
            state = _model(aggregate, self.store)
            updates = [each.result() for each in hashing]
            weights = [weight for _, _, weight in vetted]
            supported_strategies.check_mean(
                self.inner, state, [(u.state, w) for u, w in zip(updates, weights, strict=True)]
            )
            distances = list(pool.map(lambda u: self.store.moved(u.state, state), updates))
        clients = [
            _contribution(self._asked[reply.metadata.src_node_id], weight, update, away)
            for reply, weight, update, away in zip(sound, weights, updates, distances, strict=True)
        ]
        completed = self.store.keep(
            state,
            run=self._run,
            strategy=type(self.inner).__name__,
            start=self._start,
            clients=clients,
            config=self._config,
            server_round=server_round + self._done,
        )
        self._start, self._last = completed.model, _bytes(aggregate)
        if self._known is not None:
            for reply, update in zip(sound, updates, strict=True):
                node = self._asked[reply.metadata.src_node_id]
                self._known.setdefault(node.identity, node)
                self._digests[node.identity] = update.digest
        return aggregate, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Let the strategy choose among the clients that have not left."""
        waiting = self._waiting(self._admitted(grid), "evaluate")
        return self.inner.configure_evaluate(server_round + self._done, arrays, config, waiting)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Let the strategy average what can be averaged."""
        found = list(replies)
        sound = {r.metadata.src_node_id: r for r in found if not r.has_error()}
        odd = differing_replies(sound)
        for node in sorted(odd):
            logger.info(f"left out of the evaluation: node {node}: its metrics are other ones")
        found = [r for r in found if r.has_error() or r.metadata.src_node_id not in odd]
        return self.inner.aggregate_evaluate(server_round + self._done, found)

    def summary(self) -> None:
        """Pass on."""
        self.inner.summary()

    def _numbered(self, evaluate: Evaluate) -> Evaluate:
        return lambda number, record: evaluate(number + self._done, record)

    def _place(self, reply: Message) -> str:
        node = self._asked.get(reply.metadata.src_node_id)
        return node.name if node else ""

    def _is_last(self, record: ArrayRecord) -> bool:
        """Return whether these are the very bytes that the last round ended with."""
        here = _bytes(record)
        return (
            bool(here)
            and here.keys() == self._last.keys()
            and all(here[name] is data for name, data in self._last.items())
        )

    def _admitted(self, grid: Grid) -> AdmissionGrid:
        """Return the grid without those who have left; an erasure waits until this has ended."""
        if self._known is None:
            self._known = {node.identity: node for node in self.store.clients()}
            self._digests = self.store.digests()
        roster = Roster(self._known.values(), self.store.erased())
        return AdmissionGrid(grid, roster, self._tell_refused)

    def _waiting(self, shown: AdmissionGrid, phase: Literal["train", "evaluate"]) -> DeadlineGrid:
        """Return a grid that waits for as many clients as the strategy does, and not for ever."""
        enough = supported_strategies.min_clients(self.inner, phase)
        return DeadlineGrid(shown, self._wait_seconds, enough=enough, hopeless=shown.hopeless)

    def _tell_refused(self, node: Node, reason: str) -> None:
        if (node.node, reason) not in self._told:
            self._told.add((node.node, reason))
            logger.info(f"stays out: client {node.name!r}: {reason}")

    def _vetted(
        self, replies: Sequence[Message], pool: ThreadPoolExecutor
    ) -> list[tuple[Message, states.State, float]]:
        """Return the replies that a mean can be made of; the others are left out and named."""
        like = self.store.like
        looking = [pool.submit(check_update, r, self.inner, like) for r in replies]
        faults, sound = dict[int, str](), list[tuple[Message, states.State, float]]()
        for reply, looked in zip(replies, looking, strict=True):
            try:
                sound.append((reply, *looked.result()))
            except GuardError as error:
                faults[reply.metadata.src_node_id] = str(error)
        odd = differing_replies({r.metadata.src_node_id: r for r, _, _ in sound})
        faults |= dict.fromkeys(odd, "its records or metrics are named otherwise than others'")
        for node, fault in faults.items():
            logger.info(f"left out of the round: client {self._asked[node].name!r}: {fault}")
        if len(faults) > 1 and faults.keys() == self._asked.keys():  # the app's fault, nobody's
            raise GuardError(f"no client sent a sound update: {next(iter(faults.values()))}")
        return [each for each in sound if each[0].metadata.src_node_id not in odd]


def _hashed(state: states.State) -> HashedUpdate:
    return HashedUpdate(state, states.digest(state))


def _contribution(
    node: Node, weight: float, update: HashedUpdate, distance: float | None
) -> Contribution:
    return Contribution(
        client=node.name,
        node=str(node.node),
        key=node.key,
        weight=weight,
        digest=update.digest,
        distance=distance,
    )


def _bytes(record: ArrayRecord) -> dict[str, bytes]:
    return {name: array.data for name, array in record.items()}


def _model(record: ArrayRecord, store: Store) -> dict[str, Any]:
    try:
        return arrays.to_state(record, store.like, averaged=True, shared=True)
    except GuardError as error:
        raise GuardError(f"the strategy's arrays are not those of load_model(): {error}") from error


def config_to_json(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what clients were told, as JSON holds it; the round's number is told anew."""
    return {
        name: _BYTES + base64.b64encode(value).decode() if isinstance(value, bytes) else value
        for name, value in config.items()
        if name != "server-round"
    }


def config_from_json(found: Mapping[str, Any]) -> ConfigRecord:
    """Return what `told` wrote down."""
    return ConfigRecord(
        {
            name: base64.b64decode(value.removeprefix(_BYTES))
            if isinstance(value, str) and value.startswith(_BYTES)
            else value
            for name, value in found.items()
        }
    )
