"""A training's strategy under SecAgg+, whose rounds are written down, and the grid that it has."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
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
    EvaluateIns,
    EvaluateRes,
    GridClientProxy,
    LegacyContext,
    LegacyStrategy,
    NodeInfo,
    Parameters,
    RunNotRunningException,
    Scalar,
    SimpleClientManager,
    WorkflowKey,
)
from secede.flower.protocol.nodes import Node, Roster
from secede.flower.rounds.grid import AdmissionGrid, DeadlineGrid, with_fast_polls
from secede.flower.rounds.recording import config_to_json
from secede.flower.rounds.transport import Transport
from secede.flower.secagg import legacy_api
from secede.flower.secagg.engine import Failures, Results
from secede.flower.secagg.grid import FitMessages, SecAggGrid, SecAggRound
from secede.flower.secagg.legacy_api import SecAggSettings
from secede.flower.secagg.opened_sums import OpenedSums
from secede.flower.storage.round_log import Contribution
from secede.flower.storage.store import Store
from secede.state import State

logger = logging.getLogger(__name__)

_PAUSE = 0.5  # seconds between two looks for replies
_SAME = 1e-5  # of a value's size: rounding makes less of a mean of equal states


class TrainingGrid(SecAggGrid):
    """The grid of a training, on which those who were erased are not."""

    def __init__(self, grid: Grid, store: Store, seconds: float, most: float) -> None:
        transport = Transport(grid=with_fast_polls(grid), pause=_PAUSE, now=store.clock)
        super().__init__(
            transport,
            OpenedSums(store.path),
            like=store.template,
            home=store.identity,
            most=most,
            seconds=seconds,
        )
        self.ended, self._grid, self._thread = False, transport.grid, threading.get_ident()

    def admit(self, roster: Roster, refused: Callable[[Node, str], None]) -> AdmissionGrid:
        """Show those whom the roster admits."""
        self.inner = shown = AdmissionGrid(self._grid, roster, refused)
        self.transport = replace(self.transport, grid=shown)
        return shown

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return who is there; Flower's own thread asks on until it hears that all is over."""
        if self.ended and threading.get_ident() != self._thread:
            raise RunNotRunningException
        return super().get_nodes()


class TimeoutClientManager(SimpleClientManager):
    """A manager that waits for clients for so long, and not for a day."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def wait_for(self, num_clients: int, timeout: float = 86400) -> bool:
        """Wait; SilentError once the time is over."""
        with self._cv:
            if self._cv.wait_for(lambda: len(self.clients) >= num_clients, self._seconds):
                return True
        raise SilentError(
            f"too few clients came within {self._seconds:g} seconds: {len(self.clients)} of "
            f"{num_clients} are there; start the others, or lower the strategy's "
            "min_available_clients"
        )


class RecordingStrategy(LegacyStrategy):
    """A weighted mean under SecAgg+ whose rounds are written down."""

    run, done = "", 0  # rounds of this training before it was cut short

    def __init__(
        self,
        masked: SecAggSettings,
        store: Store,
        shown: TrainingGrid,
        begin: State,
        online_timeout: float,
    ) -> None:
        self._masked, self._inner, self._store, self._shown = masked, masked.strategy, store, shown
        self._wait_seconds = online_timeout
        self._begin, self._start = begin, states.digest(begin)
        self._known = {node.identity: node for node in store.clients()}
        self._digests = store.update_digests()  # of their last recorded updates, by identity
        self._asked, self._config = dict[int, Node](), dict[str, Any]()
        self._in_mean: set[int] | None = None
        self._made: FitMessages | None = None
        self._said = set[tuple[int, str]]()
        self._admit()

    def round(self, _: Grid, context: Context) -> None:
        """Take a round, under the number that it has in the whole training."""
        config = context.state.config_records[MAIN_CONFIGS_RECORD]
        number = int(str(config[WorkflowKey.CURRENT_ROUND])) + self.done
        config[WorkflowKey.CURRENT_ROUND] = number
        self._in_mean, self._made = None, None
        assert isinstance(context, LegacyContext)  # that was checked
        self._shown.carry(self._masked.workflow, context)
        here = self._shown.round
        missing = {n: why for n, why in here.faults.items() if n not in (self._in_mean or ())}
        for node, why in missing.items():
            logger.info(f"left out of the round: client {self._asked[node].name!r}: {why}")
        if here.spoilt:
            logger.info(f"round {number} is not recorded, all stays: {here.spoilt}")
        elif self._in_mean is None:
            logger.info(f"round {number}: secure aggregation came to no end, all stays")
            wrong = missing.keys() - here.silent
            if len(wrong) > 1 and wrong == self._asked.keys():  # the app's fault, nobody's
                raise GuardError(f"no client sent a sound update: {next(iter(missing.values()))}")

    def initialize_parameters(self, client_manager: ClientManager) -> Parameters | None:
        """Begin where the training begins."""
        return legacy_api.to_parameters(self._begin)

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> FitMessages:
        """Let the strategy choose, once a round, among the clients that have not left."""
        if self._made is not None:  # it begins again without those who dropped out
            return self._shown.left(self._made)
        self._start = states.digest(legacy_api.to_state(parameters, self._store.template))
        self._store.check_start(self._start)
        shown = self._admit()
        DeadlineGrid(
            shown,
            self._wait_seconds,
            enough=max(
                self._masked.min_clients(), len(self._shown.opened.opened_with(self._start) or ())
            ),
            why_too_few=shown.why_too_few,
        ).get_nodes()
        made = self._inner.configure_fit(server_round, parameters, client_manager)
        chosen = [int(proxy.cid) for proxy, _ in made]
        if strangers := {*chosen} - shown.admitted.keys():
            raise ConfigError(
                f"strategy {type(self._inner).__name__!r} chose node {min(strangers)}, which takes "
                "no part: choose among the client manager's"
            )
        if made and self._shown.opened.opened_with(self._start) is not None:
            made = self._again(made, shown)
        self._asked = {int(proxy.cid): shown.admitted[int(proxy.cid)] for proxy, _ in made}
        legacy_api.check_modulus(self._masked.workflow, len(made))
        self._config = config_to_json(made[0][1].config) if made else {}
        self._shown.round = SecAggRound(
            names={node: who.name for node, who in self._asked.items()},
            start=self._start,
            without_fail=not self._inner.accept_failures,
            serving={n: self._digests.get(who.identity) for n, who in self._asked.items()},
        )
        self._made = made
        return made

    def aggregate_fit(
        self, server_round: int, results: Results, failures: Failures
    ) -> tuple[Parameters | None, dict[str, Scalar]]:
        """Let the strategy take the mean that there is, and write down whose it is."""
        here = self._shown.round
        here.opening = False
        weights = {int(proxy.cid): int(found.num_examples) for proxy, found in results}
        counts = [*weights.values()]
        try:
            shown = legacy_api.unmasked_mean(
                self._masked.workflow, results[0][1].parameters, counts
            )
        except GuardError as error:
            here.spoilt = str(error)
            return None, {}
        for _, found in results:
            found.parameters = shown
        lost = [n for n in here.faults if n not in weights]
        failed = [*failures, *(RuntimeError(here.faults[n]) for n in lost)]
        mean = legacy_api.to_state(shown, self._store.template)
        parameters, metrics = self._inner.aggregate_fit(server_round, results, failed)
        self._in_mean = set(weights)
        if parameters is None:
            logger.info(f"round {server_round}: the strategy took no mean, all stays")
            return parameters, metrics
        state = legacy_api.to_state(parameters, self._store.template)
        _check_same(state, mean, type(self._inner).__name__)
        for line in legacy_api.warnings(self._masked.workflow, counts):
            self._tell_once(0, line.partition(" ")[0], line)
        digests = here.digests
        for node in weights.keys() - digests.keys():
            self._tell_once(
                node,
                "nothing kept",
                f"client {self._asked[node].name!r} says of no update that it kept it: it cannot "
                "leave by a step of its own; is erasure.mod the second of its mods?",
            )
        clients = [
            Contribution(
                client=self._asked[node].name,
                node=str(node),
                key=self._asked[node].key,
                weight=weight,
                digest=digests.get(node),
            )
            for node, weight in sorted(weights.items(), key=lambda pair: self._asked[pair[0]].name)
        ]
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
            who = self._asked[node]
            self._known.setdefault(who.identity, who)
            if node in digests:
                self._digests[who.identity] = digests[node]
        # What is written down is what the next round begins with, to the bit.
        return legacy_api.to_parameters(state), metrics

    def configure_evaluate(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, EvaluateIns]]:
        """Pass on."""
        return self._inner.configure_evaluate(server_round, parameters, client_manager)

    def aggregate_evaluate(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, EvaluateRes]],
        failures: list[tuple[ClientProxy, EvaluateRes] | BaseException],
    ) -> tuple[float | None, dict[str, Scalar]]:
        """Pass on."""
        return self._inner.aggregate_evaluate(server_round, results, failures)

    def evaluate(
        self, server_round: int, parameters: Parameters
    ) -> tuple[float, dict[str, Scalar]] | None:
        """Pass on."""
        return self._inner.evaluate(server_round, parameters)

    def _admit(self) -> AdmissionGrid:
        roster = Roster(self._known.values(), self._store.erased_clients())
        return self._shown.admit(roster, self._tell_refused)

    def _again(self, made: FitMessages, shown: AdmissionGrid) -> FitMessages:
        """Return the messages of a round whose sum was opened before: to the same clients."""
        names = [node.name for node in shown.admitted.values()]
        agreed = self._shown.opened.allowed_clients(self._start, names)
        logger.info(
            f"a sum from this model was opened before: the round is taken again with the same "
            f"clients, {', '.join(sorted(agreed))}"
        )
        given = {int(proxy.cid): ins for proxy, ins in made}
        return [
            (GridClientProxy(node, self._shown, run_id=0), given.get(node, made[0][1]))
            for node, who in shown.admitted.items()
            if who.name in agreed
        ]

    def _tell_refused(self, node: Node, reason: str) -> None:
        self._tell_once(node.node, reason, f"stays out: client {node.name!r}: {reason}")

    def _tell_once(self, node: int, what: str, line: str) -> None:
        if (node, what) not in self._said:
            self._said.add((node, what))
            logger.info(line)


def _check_same(state: State, mean: State, name: str) -> None:
    for key, value in mean.items():
        if value.is_floating_point():
            share = max(_SAME, 4 * torch.finfo(value.dtype).eps)
            if not torch.allclose(state[key].double(), value.double(), rtol=share, atol=1e-8):
                raise ConfigError(
                    f"strategy {name!r} changes the weighted mean (at {key!r}): nothing can be "
                    "erased from such a model"
                )
