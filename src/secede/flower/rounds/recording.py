"""A strategy that records, after each round, who contributed with which weight and digest.

It stores the global model, and never an update. A training that was cut short by a kill of the
ServerApp or the SuperLink goes on after its last completed round when it is started again.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median_low
from typing import Any, Literal

from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result, Strategy
from torch import Tensor

from secede import state as states
from secede.errors import ConfigError, GuardError, StateError
from secede.flower.protocol import arrays, messages
from secede.flower.protocol.nodes import Node, Roster
from secede.flower.rounds import supported_strategies
from secede.flower.rounds.commitments import Commitments, pop_told
from secede.flower.rounds.grid import (
    AdmissionGrid,
    DeadlineGrid,
    prepared,
    reply_error,
)
from secede.flower.storage import Contribution, Store, config_to_json
from secede.state import State
from secede.text import list_first

logger = logging.getLogger(__name__)


def check_update(
    reply: Message, strategy: FedAvg, template: State
) -> tuple[dict[str, Tensor], float]:
    """Return a reply's state and weight; GuardError if no mean can be made of them."""
    state, weight = supported_strategies.update_of(reply, strategy, template, shared=True)
    try:
        states.check_finite(state, "its update")
    except StateError as error:
        raise GuardError(str(error)) from error
    return state, weight


def differing_replies(replies: Mapping[int, Message]) -> set[int]:
    """Return the nodes whose records and metrics have other names than most others'."""
    shapes = {node: _shape(reply) for node, reply in replies.items()}
    if not shapes:
        return set()
    ((usual, _),) = Counter(shapes.values()).most_common(1)
    return {node for node, shape in shapes.items() if shape != usual}


def _shape(reply: Message) -> Hashable:
    return (
        *sorted(reply.content.array_records),
        *(
            (key, name, len(value) if isinstance(value, list) else -1)
            for key, record in sorted(reply.content.metric_records.items())
            for name, value in sorted(record.items())
        ),
    )


ONLINE_TIMEOUT = 600.0  # seconds
_THREADS = 4
_CREDIBLE = 100_000  # a weight up to here is never taken for absurd,
_MEDIANS = 1_000  # nor one up to so many times the median of the round's
_NEAR = 2  # a weight that is so many times the number of samples, or a part of it, counts others

Evaluate = Callable[[int, ArrayRecord], MetricRecord | None]


def recording(
    strategy: Strategy,
    store: Store,
    *,
    online_timeout: float = ONLINE_TIMEOUT,
    from_scratch: bool = False,
) -> Recording:
    """Return a strategy that trains as `strategy` does and records what an erasure needs.

    `strategy` must be a weighted mean. Before each round it waits `online_timeout` seconds for
    clients. A training that was cut short goes on after its last round. After a finished one, the
    next goes on from its model, unless it is started with another model of this store.
    `from_scratch` begins with the weights that it is started with, however the last one ended.
    """
    if isinstance(strategy, Recording):
        if strategy.store.path != store.path:
            raise ConfigError(
                f"the strategy records into {strategy.store.path} already, not {store.path}: wrap "
                "the strategy inside of it instead"
            )
        return strategy
    return Recording(
        supported_strategies.check_strategy(strategy),
        store,
        online_timeout=online_timeout,
        from_scratch=from_scratch,
    )


class Recording(Strategy):
    """A weighted mean that records its rounds in a store."""

    def __init__(
        self, inner: FedAvg, store: Store, *, online_timeout: float, from_scratch: bool = False
    ) -> None:
        self.inner, self.store = inner, store
        self._online_timeout, self._from_scratch = online_timeout, from_scratch
        self._done = 0  # rounds of this training before it was cut short
        self._participants = dict[int, Node]()  # of this round, by node
        self._evaluators = dict[int, Node]()  # who may evaluate in this round, by node
        self._contributors: dict[str, Node] | None = None  # so far, by identity
        self._digests = dict[str, str]()  # of their last recorded updates, by identity
        self._commitments = Commitments({})
        self._logged_refusals = set[tuple[int, str]]()
        self._start, self._config, self._run = "", dict[str, Any](), ""
        self._start_bytes = dict[str, bytes]()  # the arrays of the model with digest `_start`

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
        with self.store.lock():
            self._contributors = None  # an erasure may have come between two trainings
            given = states.digest(_model(initial_arrays, self.store))
            begin, state = self.store.start_training(
                num_rounds, given=given, from_scratch=self._from_scratch
            )
            self._done = min(begin.done, num_rounds)
            arrays = initial_arrays if state is None else ArrayRecord(state)
            self._start = begin.model or given
            self._start_bytes = _bytes(arrays)
            result = super().start(
                prepared(grid),
                arrays,
                num_rounds - self._done,
                timeout,
                train_config,
                evaluate_config,
                None if evaluate_fn is None else self._numbered(evaluate_fn),
            )
            if num_rounds == self._done:
                result.arrays = arrays
            self.store.trainings.finish()
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Let the strategy choose among the clients that were not erased."""
        if not self._is_start(arrays):  # else it was hashed when it was written
            self._start = states.digest(_model(arrays, self.store))
        self.store.check_start(self._start)
        admission = self._admission(grid)
        waiting = self._with_timeout(admission, "train")
        self._config = config_to_json(config)  # before the strategy changes it for this round
        sent = list(self.inner.configure_train(server_round + self._done, arrays, config, waiting))
        chosen = {message.metadata.dst_node_id for message in sent}
        if strangers := chosen - admission.admitted.keys():
            raise ConfigError(
                f"strategy {type(self.inner).__name__!r} sends to node {min(strangers)}, which "
                "takes no part: choose among grid.get_node_ids()"
            )
        self._participants = {node: admission.admitted[node] for node in chosen}
        for message in sent:
            client = self._participants[message.metadata.dst_node_id]
            messages.add_home(message, self.store.identity, self._digests.get(client.identity))
            messages.add_client(message, client.name)
        self._run = str(sent[0].metadata.run_id) if sent else ""
        return sent

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Let the strategy average, and record who is in the mean."""
        every = [
            r for r in replies if r.has_error() or r.metadata.src_node_id in self._participants
        ]
        supported_strategies.check_in_the_open(every)
        errors = [reply for reply in every if reply.has_error()]
        for reply in errors:
            if node := self._participants.get(reply.metadata.src_node_id):
                self._log_left_out(node, reply_error(reply))
        samples = {
            r.metadata.src_node_id: messages.pop_samples(r) for r in every if r.has_content()
        }
        for reply in every:
            if reply.has_content() and (fault := messages.pop_fault(reply)):
                name = self._participants[reply.metadata.src_node_id].name
                logger.warning(f"an erasure cannot ask client {name!r}: {fault}")
        told = {
            r.metadata.src_node_id: pop_told(r, self._name(r)) for r in every if r.has_content()
        }
        # Flower samples in random order, and a sum of floats depends on its order.
        every.sort(key=self._name)
        with ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as pool:
            checked = self._checked([reply for reply in every if not reply.has_error()], pool)
            valid = [reply for reply, _, _ in checked]
            # Hashing leaves the interpreter to the mean, and needs as long.
            hashing = [pool.submit(states.digest, state) for _, state, _ in checked]
            aggregate, metrics = self.inner.aggregate_train(
                server_round + self._done, [*_with_clean_errors(errors), *valid]
            )
            if aggregate is None:
                refused = {reply.metadata.src_node_id for reply in every}
                if errors and server_round + self._done == 1 and refused == {*self._participants}:
                    raise GuardError(
                        f"all clients refused the first round: {reply_error(errors[0])}; fix what "
                        "they say in their logs, and start again"
                    )
                logger.warning(
                    f"round {server_round + self._done}: no update came, the model stays as it is"
                )
                return aggregate, metrics
            state = _model(aggregate, self.store)
            digests = [future.result() for future in hashing]
            updates = [(update, weight) for _, update, weight in checked]
            supported_strategies.check_mean(self.inner, state, updates)
            distances = list(pool.map(lambda u: self.store.distance(u[0], state), updates))
        nodes = [self._participants[reply.metadata.src_node_id] for reply in valid]
        self._compare_with_samples(
            [
                (node.name, weight, samples[node.node])
                for node, (_, weight) in zip(nodes, updates, strict=True)
            ]
        )
        clients = [
            Contribution.of(
                node,
                weight,
                digest,
                distance,
                self._commitments.take(node.name, told[node.node]),
            )
            for node, (_, weight), digest, distance in zip(
                nodes, updates, digests, distances, strict=True
            )
        ]
        completed = self.store.record_round(
            state,
            run=self._run,
            strategy=type(self.inner).__name__,
            start=self._start,
            clients=clients,
            config=self._config,
            server_round=server_round + self._done,
        )
        self._commitments.log_missing(node.name for node in nodes)
        self._start, self._start_bytes = completed.model, _bytes(aggregate)
        if self._contributors is not None:
            for node, digest in zip(nodes, digests, strict=True):
                self._contributors.setdefault(node.identity, node)
                self._digests[node.identity] = digest
        return aggregate, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Let the strategy choose among the clients that were not erased."""
        admission = self._admission(grid)
        self._evaluators = admission.admitted
        waiting = self._with_timeout(admission, "evaluate")
        return self.inner.configure_evaluate(server_round + self._done, arrays, config, waiting)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Let the strategy average the metrics that have the same names, by valid weights."""
        every = _with_clean_errors(replies)
        sound = {r.metadata.src_node_id: r for r in every if not r.has_error()}
        faults = dict.fromkeys(differing_replies(sound), "its metrics have names of their own")
        if type(self.inner).aggregate_evaluate is FedAvg.aggregate_evaluate:
            weightless = [
                n for n in sound if not supported_strategies.weight_of(sound[n], self.inner)
            ]
            faults |= dict.fromkeys(
                weightless, f"its {self.inner.weighted_by_key!r} is no number above 0"
            )
        for node, reason in sorted(faults.items()):
            who = self._evaluators[node].name
            logger.warning(f"left out of the evaluation: client {who!r}: {reason}")
        usable = [r for r in every if r.has_error() or r.metadata.src_node_id not in faults]
        return self.inner.aggregate_evaluate(server_round + self._done, usable)

    def summary(self) -> None:
        """Log the strategy's own summary."""
        self.inner.summary()

    def _numbered(self, evaluate: Evaluate) -> Evaluate:
        return lambda number, record: evaluate(number + self._done, record)

    def _name(self, reply: Message) -> str:
        node = self._participants.get(reply.metadata.src_node_id)
        return node.name if node else ""

    def _is_start(self, record: ArrayRecord) -> bool:
        """Return whether these are the very bytes that the last round ended with."""
        data = _bytes(record)
        return (
            bool(data)
            and data.keys() == self._start_bytes.keys()
            and all(data[name] is value for name, value in self._start_bytes.items())
        )

    def _admission(self, grid: Grid) -> AdmissionGrid:
        """Return the grid without erased clients; an erasure waits until this training ends."""
        if self._contributors is None:
            self._contributors = {node.identity: node for node in self.store.clients()}
            self._digests = self.store.update_digests()
            self._commitments = Commitments(self.store.log.canaries())
        roster = Roster(self._contributors.values(), self.store.erased_clients())
        return AdmissionGrid(grid, roster, self._log_refusal)

    def _with_timeout(
        self, admission: AdmissionGrid, phase: Literal["train", "evaluate"]
    ) -> DeadlineGrid:
        """Return a grid that waits for as many clients as the strategy does, with a timeout."""
        enough = supported_strategies.min_clients(self.inner, phase)
        return DeadlineGrid(
            admission, self._online_timeout, enough=enough, why_too_few=admission.why_too_few
        )

    def _log_refusal(self, node: Node, reason: str) -> None:
        if (node.node, reason) not in self._logged_refusals:
            self._logged_refusals.add((node.node, reason))
            logger.warning(f"not admitted: client {node.name!r}: {reason}")

    def _log_left_out(self, node: Node, reason: str) -> None:
        logger.warning(f"left out of the round: client {node.name!r}: {reason}")

    def _compare_with_samples(self, weights: Sequence[tuple[str, float, int | None]]) -> None:
        """Warn of clients whose weights do not count the samples that an erasure would use."""
        other = [(n, w, s) for n, w, s in weights if s and not s / _NEAR <= w <= s * _NEAR]
        if other:
            name, weight, samples = other[0]
            key = self.store.weighted_by or self.inner.weighted_by_key
            logger.warning(
                f"{key!r} does not count samples at {list_first([n for n, _, _ in other], 8)}: "
                f"client {name!r} reports {weight:g} and has {samples}. The mean weighs by it, and "
                f"erasures go by the weights that are recorded; to weigh by samples, return "
                f"len(loader.dataset) as {key!r}, not len(loader), the number of batches or steps"
            )

    def _checked(
        self, replies: Sequence[Message], pool: ThreadPoolExecutor
    ) -> list[tuple[Message, states.State, float]]:
        """Return the replies that a mean can be made of; the others are left out and logged."""
        template = self.store.template
        checks = [pool.submit(check_update, reply, self.inner, template) for reply in replies]
        faults, checked = dict[int, str](), list[tuple[Message, states.State, float]]()
        for reply, check in zip(replies, checks, strict=True):
            try:
                checked.append((reply, *check.result()))
            except GuardError as error:
                faults[reply.metadata.src_node_id] = str(error)
        differing = differing_replies({r.metadata.src_node_id: r for r, _, _ in checked})
        faults |= dict.fromkeys(differing, "its records or metrics have other names than others'")
        limit = _MEDIANS * median_low([weight for _, _, weight in checked] or [0.0])
        for reply, _, weight in checked:
            if weight > max(limit, _CREDIBLE):
                faults[reply.metadata.src_node_id] = (
                    f"its {self.inner.weighted_by_key!r} is {weight:g}, above {_CREDIBLE:,} and "
                    f"above {_MEDIANS:,} times the median of the round's, {limit / _MEDIANS:g}"
                )
        for node, fault in faults.items():
            self._log_left_out(self._participants[node], fault)
        # If every client is at fault, the app is.
        if len(faults) > 1 and faults.keys() == self._participants.keys():
            raise GuardError(f"no client sent a valid update: {next(iter(faults.values()))}")
        return [row for row in checked if row[0].metadata.src_node_id not in faults]


def _with_clean_errors(replies: Iterable[Message]) -> list[Message]:
    """Return the replies, errors without what a client may write into the log: Flower logs them."""
    every = list(replies)
    for reply in every:
        if reply.has_error():
            reply.error = Error(reply.error.code, reply_error(reply))
    return every


def _bytes(record: ArrayRecord) -> dict[str, bytes]:
    return {name: array.data for name, array in record.items()}


def _model(record: ArrayRecord, store: Store) -> dict[str, Any]:
    try:
        return arrays.to_state(record, store.template, averaged=True, shared=True)
    except GuardError as error:
        raise GuardError(f"the strategy's arrays are not those of load_model(): {error}") from error
