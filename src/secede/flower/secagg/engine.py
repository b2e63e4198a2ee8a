"""Rounds under SecAgg+: the server gets the mean, and of each client its weight and a digest.

Every update of a round is that mean, as Flower itself hands it to a strategy, so that whatever is
made of them, weighted by samples, is the mean again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from flwr.app import ConfigRecord, Context, RecordDict

from secede import state as states
from secede.errors import GuardError, SilentError
from secede.federation.engine import Update
from secede.flower._flwr import (
    MAIN_CONFIGS_RECORD,
    MAIN_PARAMS_RECORD,
    ClientManager,
    ClientProxy,
    EvaluateIns,
    EvaluateRes,
    FitRes,
    GridClientProxy,
    LegacyContext,
    LegacyStrategy,
    Parameters,
    Scalar,
    ServerConfig,
    SimpleClientManager,
    WorkflowKey,
    parameters_to_arrayrecord,
)
from secede.flower.protocol.messages import round_group
from secede.flower.rounds.engine import LiveEngine, RoundResult
from secede.flower.secagg import legacy_api
from secede.flower.secagg.grid import FitMessages, SecAggGrid, SecAggRound
from secede.flower.secagg.legacy_api import SecAggSettings
from secede.flower.secagg.opened_sums import OpenedSums
from secede.state import State

logger = logging.getLogger(__name__)

Results = list[tuple[ClientProxy, FitRes]]
Failures = list[tuple[ClientProxy, FitRes] | BaseException]


class CapturingStrategy(LegacyStrategy):
    """A strategy that configures a round as another does, and keeps what came of it."""

    def __init__(self, masked: SecAggSettings, grid: SecAggGrid) -> None:
        self.inner, self.results, self._grid = masked.sampling_all(), Results(), grid
        self.mean, self._workflow = Parameters([], ""), masked.workflow

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> FitMessages:
        """Let the other do it, for all who are still in the round."""
        made = self.inner.configure_fit(server_round, parameters, client_manager)
        return self._grid.left(made)

    def aggregate_fit(
        self, server_round: int, results: Results, failures: Failures
    ) -> tuple[Parameters | None, dict[str, Scalar]]:
        """Keep the results: who is in the mean with which weight, and the mean itself."""
        here = self._grid.round
        here.opening = False
        weights = [int(found.num_examples) for _, found in results]
        try:
            self.mean = legacy_api.unmasked_mean(self._workflow, results[0][1].parameters, weights)
            self.results = results
        except GuardError as error:
            here.spoilt = str(error)
        return None, {}

    def initialize_parameters(self, client_manager: ClientManager) -> Parameters | None:
        """There is nothing to begin with."""
        return None

    def configure_evaluate(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[ClientProxy, EvaluateIns]]:
        """Nobody evaluates."""
        return []

    def aggregate_evaluate(
        self,
        server_round: int,
        results: list[tuple[ClientProxy, EvaluateRes]],
        failures: list[tuple[ClientProxy, EvaluateRes] | BaseException],
    ) -> tuple[float | None, dict[str, Scalar]]:
        """Nobody evaluates."""
        return None, {}

    def evaluate(
        self, server_round: int, parameters: Parameters
    ) -> tuple[float, dict[str, Scalar]] | None:
        """Nobody evaluates."""
        return None


@dataclass(frozen=True, kw_only=True)
class SecureEngine(LiveEngine):
    """An engine whose rounds hide single updates."""

    masked: SecAggSettings
    opened: OpenedSums

    def _exchanged(
        self,
        state: State,
        at: Mapping[int, int],
        names: Mapping[int, str],
        *,
        phase: str,
        number: int,
    ) -> RoundResult:
        begin = {name: state[name] for name in self.like}
        start = states.digest(begin)
        agreed = self.opened.allowed_clients(start, [*names.values()])
        faults = dict.fromkeys(names, "a sum from this model was opened without it")
        at = {node: client for node, client in at.items() if names[node] in agreed}
        legacy_api.check_modulus(self.masked.workflow, len(at))
        grid = SecAggGrid(
            self.transport,
            self.opened,
            like=self.like,
            home=self.home,
            most=self.masked.workflow.max_weight,
            seconds=self.round_timeout,
        )
        own = {node: self.own.get(client) for node, client in at.items()}
        grid.round = here = SecAggRound(
            names=names,
            start=start,
            check=self.enough,
            serving={node: known.digest for node, known in own.items() if known},
            max_weights={n: self.max_weights[c] for n, c in at.items() if c in self.max_weights},
            group=round_group(phase, number),
            faults={node: why for node, why in faults.items() if node not in at},
        )
        heard, manager = CapturingStrategy(self.masked, grid), SimpleClientManager()
        for node in at:
            manager.register(GridClientProxy(node, grid, run_id=0))
        context = LegacyContext(
            Context(run_id=0, node_id=0, node_config={}, state=RecordDict(), run_config={}),
            config=ServerConfig(num_rounds=1),
            strategy=heard,
            client_manager=manager,
        )
        told = ConfigRecord({WorkflowKey.CURRENT_ROUND: self.first_round + number})
        context.state.config_records[MAIN_CONFIGS_RECORD] = told
        record = parameters_to_arrayrecord(legacy_api.to_parameters(begin), keep_input=True)
        context.state.array_records[MAIN_PARAMS_RECORD] = record
        try:
            grid.carry(self.masked.workflow, context)
        except SilentError:
            for node, why in here.faults.items():
                logger.info(f"left out of the round: client {names[node]!r}: {why}")
            raise
        if not heard.results:
            why = here.spoilt or "too few clients stayed in it"
            logger.info(f"secure aggregation came to no end: {why}")
            return RoundResult(faults=here.faults, up=here.up, down=here.down)
        mean = legacy_api.to_state(heard.mean, self.like)
        weights = {at[int(p.cid)]: int(found.num_examples) for p, found in heard.results}
        for line in legacy_api.warnings(self.masked.workflow, [*weights.values()]):
            logger.info(line)
        return RoundResult(
            updates=[Update(client, mean, weight) for client, weight in weights.items()],
            digests={at[node]: digest for node, digest in here.digests.items()},
            faults=here.faults,
            up=here.up,
            down=here.down,
        )
