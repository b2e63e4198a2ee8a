"""A workflow that records, after each round under SecAgg+, who is in the mean with which weight.

It is the counterpart of `recording`. Weights and digests are what the clients report: the server
sees neither their updates nor the updates' distances from the mean.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from flwr.app import Context
from flwr.serverapp import Grid

from secede import state as states
from secede.errors import ConfigError, GuardError, SilentError
from secede.flower._flwr import (
    MAIN_CONFIGS_RECORD,
    ClientManager,
    ClientProxy,
    DefaultWorkflow,
    EvaluateIns,
    EvaluateRes,
    GridClientProxy,
    LegacyContext,
    LegacyStrategy,
    NodeInfo,
    Parameters,
    RunNotRunningException,
    Scalar,
    SecAggPlusWorkflow,
    SimpleClientManager,
    WorkflowKey,
)
from secede.flower.protocol.nodes import Node, Roster
from secede.flower.rounds import (
    ONLINE_TIMEOUT,
    AdmissionGrid,
    Commitments,
    DeadlineGrid,
    Transport,
    prepared,
)
from secede.flower.secagg import legacy_api
from secede.flower.secagg.engine import Failures, Results
from secede.flower.secagg.grid import FitMessages, SecAggGrid, SecAggRound
from secede.flower.secagg.legacy_api import SecAggSettings
from secede.flower.storage import Contribution, OpenedSums, Store, config_to_json
from secede.state import State

logger = logging.getLogger(__name__)

ROUND_TIMEOUT = 3600.0  # seconds
_PAUSE = 0.5  # seconds between two polls for replies
_TOLERANCE = 1e-5  # of a value's size: rounding changes a mean by less


class TrainingGrid(SecAggGrid):
    """The grid of a training: it hides erased clients."""

    def __init__(self, grid: Grid, store: Store, timeout: float, max_weight: float) -> None:
        transport = Transport(grid=prepared(grid), pause=_PAUSE, now=store.clock)
        super().__init__(
            transport,
            OpenedSums(store.path),
            template=store.template,
            home=store.identity,
            max_weight=max_weight,
            timeout=timeout,
        )
        self.ended, self._grid, self._thread = False, transport.grid, threading.get_ident()

    def admit(self, roster: Roster, on_refusal: Callable[[Node, str], None]) -> AdmissionGrid:
        """Hide all nodes but those that the roster admits."""
        self.inner = admission = AdmissionGrid(self._grid, roster, on_refusal)
        self.transport = replace(self.transport, grid=admission)
        return admission

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return the online nodes; end Flower's own polling thread once the training has ended."""
        if self.ended and threading.get_ident() != self._thread:
            raise RunNotRunningException
        return super().get_nodes()


class TimeoutClientManager(SimpleClientManager):
    """A client manager whose wait for clients has a timeout, where Flower's lasts a day."""

    def __init__(self, timeout: float) -> None:
        super().__init__()
        self._timeout = timeout

    def wait_for(self, num_clients: int, timeout: float = 86400) -> bool:
        """Wait for so many clients; SilentError when the time is over."""
        with self._cv:
            if self._cv.wait_for(lambda: len(self.clients) >= num_clients, self._timeout):
                return True
        raise SilentError(
            f"too few clients came within {self._timeout:g} seconds: {len(self.clients)} of "
            f"{num_clients} are online; start the others, or lower the strategy's "
            "min_available_clients"
        )


class RecordingStrategy(LegacyStrategy):
    """A weighted mean under SecAgg+ that records its rounds in a store."""

    run, done = "", 0  # id of the run, and rounds of this training before it was cut short

    def __init__(
        self,
        masked: SecAggSettings,
        store: Store,
        grid: TrainingGrid,
        begin: State,
        online_timeout: float,
    ) -> None:
        self._masked, self._inner, self._store, self._grid = masked, masked.strategy, store, grid
        self._online_timeout = online_timeout
        self._begin, self._start = begin, states.digest(begin)
        self._contributors = {node.identity: node for node in store.clients()}
        self._digests = store.update_digests()  # of their last recorded updates, by identity
        self._commitments = Commitments(store.log.canaries())
        self._participants, self._config = dict[int, Node](), dict[str, Any]()
        self._in_mean: set[int] | None = None
        self._messages: FitMessages | None = None  # of this round
        self._warned = set[tuple[int, str]]()
        self._admit()

    def run_round(self, _: Grid, context: Context) -> None:
        """Run a round, under its number in the whole training."""
        config = context.state.config_records[MAIN_CONFIGS_RECORD]
        number = int(str(config[WorkflowKey.CURRENT_ROUND])) + self.done
        config[WorkflowKey.CURRENT_ROUND] = number
        self._in_mean, self._messages = None, None
        assert isinstance(context, LegacyContext)  # that was checked
        self._grid.run_round(self._masked.workflow, context)
        current = self._grid.round
        missing = {n: why for n, why in current.faults.items() if n not in (self._in_mean or ())}
        for node, reason in missing.items():
            name = self._participants[node].name
            logger.warning(f"left out of the round: client {name!r}: {reason}")
        if current.spoilt:
            logger.warning(
                f"round {number} is not recorded, the model stays as it is: {current.spoilt}"
            )
        elif self._in_mean is None:
            logger.warning(
                f"round {number}: secure aggregation did not complete, the model stays as it is"
            )
            failed = missing.keys() - current.silent
            # If every client is at fault, the app is.
            if len(failed) > 1 and failed == self._participants.keys():
                raise GuardError(f"no client sent a valid update: {next(iter(missing.values()))}")

    def initialize_parameters(self, client_manager: ClientManager) -> Parameters | None:
        """Return the parameters that the training begins with."""
        return legacy_api.to_parameters(self._begin)

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> FitMessages:
        """Let the strategy choose, once a round, among the clients that were not erased."""
        if self._messages is not None:  # the round begins again without those that dropped out
            return self._grid.without_dropped(self._messages)
        self._start = states.digest(legacy_api.to_state(parameters, self._store.template))
        self._store.check_start(self._start)
        admission = self._admit()
        DeadlineGrid(
            admission,
            self._online_timeout,
            enough=max(
                self._masked.min_clients(), len(self._grid.opened.opened_with(self._start) or ())
            ),
            why_too_few=admission.why_too_few,
        ).get_nodes()
        messages = self._inner.configure_fit(server_round, parameters, client_manager)
        chosen = [int(proxy.cid) for proxy, _ in messages]
        if strangers := {*chosen} - admission.admitted.keys():
            raise ConfigError(
                f"strategy {type(self._inner).__name__!r} chose node {min(strangers)}, which takes "
                "no part: choose among the client manager's clients"
            )
        if messages and self._grid.opened.opened_with(self._start) is not None:
            messages = self._to_same_clients(messages, admission)
        self._participants = {
            int(proxy.cid): admission.admitted[int(proxy.cid)] for proxy, _ in messages
        }
        legacy_api.check_modulus(self._masked.workflow, len(messages))
        self._config = config_to_json(messages[0][1].config) if messages else {}
        self._grid.round = SecAggRound(
            names={node: client.name for node, client in self._participants.items()},
            start=self._start,
            requires_all=not self._inner.accept_failures,
            serving={n: self._digests.get(c.identity) for n, c in self._participants.items()},
        )
        self._messages = messages
        return messages

    def aggregate_fit(
        self, server_round: int, results: Results, failures: Failures
    ) -> tuple[Parameters | None, dict[str, Scalar]]:
        """Let the strategy take the unmasked mean, and record whose it is."""
        current = self._grid.round
        current.unmasking = False
        weights = {int(proxy.cid): int(result.num_examples) for proxy, result in results}
        counts = [*weights.values()]
        try:
            unmasked = legacy_api.unmasked_mean(
                self._masked.workflow, results[0][1].parameters, counts
            )
        except GuardError as error:
            current.spoilt = str(error)
            return None, {}
        for _, result in results:
            result.parameters = unmasked
        lost = [node for node in current.faults if node not in weights]
        failed = [*failures, *(RuntimeError(current.faults[node]) for node in lost)]
        mean = legacy_api.to_state(unmasked, self._store.template)
        parameters, metrics = self._inner.aggregate_fit(server_round, results, failed)
        self._in_mean = set(weights)
        if parameters is None:
            logger.warning(
                f"round {server_round}: the strategy took no mean, the model stays as it is"
            )
            return parameters, metrics
        state = legacy_api.to_state(parameters, self._store.template)
        _check_same(state, mean, type(self._inner).__name__)
        for line in legacy_api.warnings(self._masked.workflow, counts):
            self._warn_once(0, line.partition(" ")[0], line)
        digests = current.digests
        for node in weights.keys() - digests.keys():
            self._warn_once(
                node,
                "nothing kept",
                f"client {self._participants[node].name!r} reports no update that it kept: it "
                "cannot leave by a step of its own; is erasure.mod the second of its mods?",
            )
        clients = [
            self._contribution(node, weight)
            for node, weight in sorted(
                weights.items(), key=lambda pair: self._participants[pair[0]].name
            )
        ]
        self._commitments.log_missing(c.client for c in clients)
        self._store.record_round(
            state,
            run=self.run,
            strategy=type(self._inner).__name__,
            start=self._start,
            clients=clients,
            config=self._config,
            server_round=server_round,
            secure=True,
        )
        for node in weights:
            client = self._participants[node]
            self._contributors.setdefault(client.identity, client)
            if node in digests:
                self._digests[client.identity] = digests[node]
        # What is written down is what the next round begins with, to the bit.
        return legacy_api.to_parameters(state), metrics

    def _contribution(self, node: int, weight: float) -> Contribution:
        current, client = self._grid.round, self._participants[node]
        committed = self._commitments.take(client.name, current.told.get(node, (None, "")))
        return Contribution.of(client, weight, current.digests.get(node), canaries=committed)

    def configure_evaluate(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, EvaluateIns]]:
        """Leave it to the strategy."""
        return self._inner.configure_evaluate(server_round, parameters, client_manager)

    def aggregate_evaluate(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, EvaluateRes]],
        failures: list[tuple[ClientProxy, EvaluateRes] | BaseException],
    ) -> tuple[float | None, dict[str, Scalar]]:
        """Leave it to the strategy."""
        return self._inner.aggregate_evaluate(server_round, results, failures)

    def evaluate(
        self, server_round: int, parameters: Parameters
    ) -> tuple[float, dict[str, Scalar]] | None:
        """Leave it to the strategy."""
        return self._inner.evaluate(server_round, parameters)

    def _admit(self) -> AdmissionGrid:
        roster = Roster(self._contributors.values(), self._store.erased_clients())
        return self._grid.admit(roster, self._log_refusal)

    def _to_same_clients(self, messages: FitMessages, admission: AdmissionGrid) -> FitMessages:
        """Return the messages of a round whose sum was opened before: to the same clients."""
        names = [node.name for node in admission.admitted.values()]
        allowed = self._grid.opened.allowed_clients(self._start, names)
        logger.info(
            "a sum from this model was opened before: the round is repeated with the same clients, "
            f"{', '.join(sorted(allowed))}"
        )
        instructions = {int(proxy.cid): ins for proxy, ins in messages}
        return [
            (GridClientProxy(node, self._grid, run_id=0), instructions.get(node, messages[0][1]))
            for node, client in admission.admitted.items()
            if client.name in allowed
        ]

    def _log_refusal(self, node: Node, reason: str) -> None:
        self._warn_once(node.node, reason, f"not admitted: client {node.name!r}: {reason}")

    def _warn_once(self, node: int, what: str, line: str) -> None:
        if (node, what) not in self._warned:
            self._warned.add((node, what))
            logger.warning(line)


def _check_same(state: State, mean: State, name: str) -> None:
    for key, value in mean.items():
        if value.is_floating_point():
            share = max(_TOLERANCE, 4 * torch.finfo(value.dtype).eps)
            if not torch.allclose(state[key].double(), value.double(), rtol=share, atol=1e-8):
                raise ConfigError(
                    f"strategy {name!r} changes the weighted mean (at {key!r}): nothing can be "
                    "erased from such a model"
                )


def secure_recording(
    workflow: DefaultWorkflow,
    store: Store,
    *,
    online_timeout: float = ONLINE_TIMEOUT,
    round_timeout: float = ROUND_TIMEOUT,
    from_scratch: bool = False,
) -> SecureRecording:
    """Return a workflow that trains as `workflow` does and records what an erasure needs.

    `workflow` must be a DefaultWorkflow whose fit workflow is SecAgg+'s. Before each round it waits
    `online_timeout` seconds for clients, and in it `round_timeout` seconds for replies. Where a
    training begins, and when it goes on, is as with `recording`.
    """
    if isinstance(workflow, SecureRecording):
        return workflow
    inner = workflow.fit_workflow if isinstance(workflow, DefaultWorkflow) else None
    if not isinstance(inner, SecAggPlusWorkflow):
        raise ConfigError(
            f"{type(workflow).__name__!r} does not hide updates: give "
            "DefaultWorkflow(fit_workflow=SecAggPlusWorkflow(...)), or record rounds in the open "
            "with recording(FedAvg(), store)"
        )
    return SecureRecording(workflow, inner, store, online_timeout, round_timeout, from_scratch)


@dataclass(frozen=True)
class SecureRecording:
    """A workflow under SecAgg+ that records its rounds in a store."""

    inner: DefaultWorkflow
    workflow: SecAggPlusWorkflow  # that hides updates, in `inner`
    store: Store
    online_timeout: float
    round_timeout: float
    from_scratch: bool

    def __call__(self, grid: Grid, context: Context) -> None:
        """Train from where the last training ended, or was cut short, unless from scratch."""
        if not isinstance(context, LegacyContext):
            raise ConfigError(f"expected a LegacyContext, got a {type(context).__name__}")
        masked = legacy_api.check_secagg(context.strategy, self.workflow)
        if type(context.client_manager) is not SimpleClientManager:
            raise ConfigError(
                f"client manager {type(context.client_manager).__name__!r} may wait for ever: "
                "leave Flower's own, SimpleClientManager, in the LegacyContext"
            )
        strategy, manager, config = context.strategy, context.client_manager, context.config
        with self.store.lock():
            initial = self._initial(masked, manager)
            begin, state = self.store.start_training(
                config.num_rounds, given=states.digest(initial), from_scratch=self.from_scratch
            )
            done = min(begin.done, config.num_rounds)
            training_grid = TrainingGrid(
                grid, self.store, self.round_timeout, masked.workflow.max_weight
            )
            recorder = RecordingStrategy(
                masked,
                self.store,
                training_grid,
                initial if state is None else state,
                self.online_timeout,
            )
            recorder.run, recorder.done = str(context.run_id), done
            context.strategy = recorder
            context.config = replace(config, num_rounds=config.num_rounds - done)
            context.client_manager = TimeoutClientManager(self.online_timeout)
            try:
                workflow = DefaultWorkflow(recorder.run_round, self.inner.evaluate_workflow)
                workflow(training_grid, context)
            finally:
                training_grid.ended = True
                context.strategy, context.client_manager = strategy, manager
                context.config = config
            self.store.trainings.finish()

    def _initial(self, masked: SecAggSettings, manager: ClientManager) -> State:
        """Return the weights that the training is started with."""
        parameters = masked.strategy.initialize_parameters(manager)
        if parameters is not None:
            return legacy_api.to_state(parameters, self.store.template)
        last = None if self.from_scratch else self.store.last_model()
        if last is None:
            raise ConfigError(
                "the strategy has no initial_parameters, from which the training would begin: give "
                "it those of load_model()"
            )
        return last


Secure = SecAggPlusWorkflow | SecureRecording  # what `secure=` takes
