"""A strategy that remembers: after every aggregate, who contributed with which weight and digest.

It stores the global model, and never an update. Training that was cut short, by a kill of the
ServerApp or the SuperLink, goes on after its last completed round when it is started again.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result, Strategy

from secede import state as states
from secede.errors import GuardError
from secede.flower import arrays, strategies
from secede.flower.grids import Awaiting, Without
from secede.flower.log import Contribution
from secede.flower.nodes import Node, online
from secede.flower.store import Store

WAIT_SECONDS = 600.0
_BYTES = "base64:"

Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]


def recording(
    strategy: Strategy, store: Store, *, wait_seconds: float = WAIT_SECONDS, resume: bool = True
) -> Recording:
    """Return a strategy that does what `strategy` does and lets clients be erased later.

    Anything but a weighted mean is refused by name. It waits for clients for `wait_seconds` before
    each round, and not for ever. `resume=False` begins a new training however the last one ended.
    """
    if isinstance(strategy, Recording):
        return strategy
    return Recording(strategies.check(strategy), store, wait_seconds=wait_seconds, resume=resume)


class Recording(Strategy):
    """A weighted mean whose rounds are written down."""

    def __init__(
        self, inner: FedAvg, store: Store, *, wait_seconds: float, resume: bool = True
    ) -> None:
        self.inner, self.store = inner, store
        self._wait_seconds, self._resume = wait_seconds, resume
        self._done = 0  # rounds of this training before it was cut short
        self._asked = dict[int, Node]()
        self._start, self._config, self._run = "", dict[str, Any](), ""

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
        """Train, going on after the last completed round if an earlier start was cut short."""
        with self.store.held():
            cut = self.store.begin(num_rounds, resume=self._resume)
            self._done = min(cut.rounds, num_rounds) if cut else 0
            begin = cut.arrays if cut else initial_arrays
            if cut:
                self.store.tell(f"training goes on after round {self._done} of {num_rounds}")
            result = super().start(
                grid,
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
        state = _model(arrays, self.store)
        self._start = states.digest(state)
        self.store.check_start(self._start)
        there, erased = online(grid), self.store.erased()
        shown = Without(grid, [node.node for node in there if node.name in erased])
        waiting = Awaiting(shown, self._wait_seconds, self.store.tell)
        made = list(self.inner.configure_train(server_round + self._done, arrays, config, waiting))
        chosen = {message.metadata.dst_node_id for message in made}
        self._asked = {node.node: node for node in online(shown) if node.node in chosen}
        self._config = told(config)
        self._run = str(made[0].metadata.run_id) if made else ""
        return made

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Let the strategy average, and write down whom."""
        found = [r for r in replies if r.has_error() or r.metadata.src_node_id in self._asked]
        # Flower samples in random order, and a sum of floats depends on its order.
        found.sort(key=self._place)
        aggregate, metrics = self.inner.aggregate_train(server_round + self._done, found)
        if aggregate is None:
            self.store.tell(f"round {server_round + self._done}: no update came, nothing changed")
            return aggregate, metrics
        state = _model(aggregate, self.store)
        sound = [reply for reply in found if not reply.has_error()]
        updates = [(self._update(reply), self._weight(reply)) for reply in sound]
        strategies.check_mean(self.inner, state, updates)
        self.store.keep(
            state,
            run=self._run,
            strategy=type(self.inner).__name__,
            start=self._start,
            clients=[
                _contribution(self._asked[reply.metadata.src_node_id], weight, update)
                for reply, (update, weight) in zip(sound, updates, strict=True)
            ],
            config=self._config,
        )
        return aggregate, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Let the strategy choose among the clients that have not left."""
        erased = self.store.erased()
        shown = Without(grid, [node.node for node in online(grid) if node.name in erased])
        waiting = Awaiting(shown, self._wait_seconds, self.store.tell)
        return self.inner.configure_evaluate(server_round + self._done, arrays, config, waiting)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Pass on."""
        return self.inner.aggregate_evaluate(server_round + self._done, replies)

    def summary(self) -> None:
        """Pass on."""
        self.inner.summary()

    def _numbered(self, evaluate: Evaluate) -> Evaluate:
        return lambda number, record: evaluate(number + self._done, record)

    def _place(self, reply: Message) -> str:
        node = self._asked.get(reply.metadata.src_node_id)
        return node.name if node else ""

    def _update(self, reply: Message) -> states.State:
        record = strategies.update_of(reply)
        assert record is not None  # the strategy has averaged it
        return arrays.plain(record)

    def _weight(self, reply: Message) -> float:
        weight = strategies.weight_of(reply, self.inner)
        if not weight:
            who = self._asked[reply.metadata.src_node_id].name
            raise GuardError(f"client {who!r} gave no weight above 0, and is in the mean")
        return weight


def _contribution(node: Node, weight: float, update: states.State) -> Contribution:
    return Contribution(
        client=node.name,
        node=str(node.node),
        key=node.key,
        weight=weight,
        digest=states.digest(update),
    )


def _model(record: ArrayRecord, store: Store) -> dict[str, Any]:
    try:
        return arrays.to_state(record, store.like, averaged=True)
    except GuardError as error:
        raise GuardError(f"the strategy's arrays are not those of load_model(): {error}") from error


def told(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what clients were told, as JSON holds it; the round's number is told anew."""
    return {
        name: _BYTES + base64.b64encode(value).decode() if isinstance(value, bytes) else value
        for name, value in config.items()
        if name != "server-round"
    }


def to_config(found: Mapping[str, Any]) -> ConfigRecord:
    """Return what `told` wrote down."""
    return ConfigRecord(
        {
            name: base64.b64decode(value.removeprefix(_BYTES))
            if isinstance(value, str) and value.startswith(_BYTES)
            else value
            for name, value in found.items()
        }
    )
