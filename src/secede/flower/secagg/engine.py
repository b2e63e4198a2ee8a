"""The engine under SecAgg+: the server gets the mean, and each client's weight and digest.

Every update of a round is that mean, as Flower itself hands it to a strategy. So any mean of the
updates, weighted by samples, is the mean again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

from flwr.app import ConfigRecord, Context, RecordDict

from secede import state as states
from secede.errors import GuardError, SilentError
from secede.federation.engine import Update
from secede.flower._flwr import (
    MAIN_CONFIGS_RECORD,
    MAIN_PARAMS_RECORD,
    ClientManager,
    ClientProxy,
    FitRes,
    GridClientProxy,
    LegacyContext,
    LegacyFedAvg,
    Parameters,
    Scalar,
    ServerConfig,
    SimpleClientManager,
    WorkflowKey,
    parameters_to_arrayrecord,
)
from secede.flower.protocol.messages import round_group
from secede.flower.rounds import LiveEngine, RoundResult
from secede.flower.secagg import legacy_api
from secede.flower.secagg.grid import FitMessages, SecAggGrid, SecAggRound
from secede.flower.secagg.legacy_api import SecAggSettings
from secede.flower.storage import OpenedSums
from secede.state import State

logger = logging.getLogger(__name__)

Results = list[tuple[ClientProxy, FitRes]]
Failures = list[tuple[ClientProxy, FitRes] | BaseException]


class CapturingStrategy(LegacyFedAvg):
    """A strategy that configures a round as another does, and keeps the results."""

    def __init__(self, masked: SecAggSettings, grid: SecAggGrid) -> None:
        super().__init__()
        self.inner, self.results, self._grid = masked.sampling_all(), Results(), grid
        self.mean, self._workflow = Parameters([], ""), masked.workflow

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> FitMessages:
        """Configure the round for all clients that are still in it."""
        messages = self.inner.configure_fit(server_round, parameters, client_manager)
        return self._grid.without_dropped(messages)

    def aggregate_fit(
        self, server_round: int, results: Results, failures: Failures
    ) -> tuple[Parameters | None, dict[str, Scalar]]:
        """Keep the results: the weights of the clients in the mean, and the mean itself."""
        self._grid.round.unmasking = False
        weights = [int(result.num_examples) for _, result in results]
        try:
            self.mean = legacy_api.unmasked_mean(self._workflow, results[0][1].parameters, weights)
            self.results = results
        except GuardError as error:
            self._grid.round.spoilt = str(error)
        return None, {}


@dataclass(frozen=True, kw_only=True)
class SecureEngine(LiveEngine):
    """An engine whose rounds hide single updates."""

    masked: SecAggSettings
    opened: OpenedSums

    def _run_round(
        self, state: State, client_at: Mapping[int, int], *, phase: str, number: int
    ) -> RoundResult:
        names = self._names(client_at)
        begin = {name: state[name] for name in self.template}
        start = states.digest(begin)
        allowed = self.opened.allowed_clients(start, [*names.values()])
        faults = dict.fromkeys(names, "a sum from this model was opened without it")
        client_at = {node: client for node, client in client_at.items() if names[node] in allowed}
        legacy_api.check_modulus(self.masked.workflow, len(client_at))
        grid = SecAggGrid(
            self.transport,
            self.opened,
            template=self.template,
            home=self.home,
            max_weight=self.masked.workflow.max_weight,
            timeout=self.round_timeout,
        )
        own = {node: self.own.get(client) for node, client in client_at.items()}
        grid.round = current = SecAggRound(
            names=names,
            start=start,
            check_quorum=self.check_quorum,
            serving={node: update.digest for node, update in own.items() if update},
            max_weights={
                node: self.max_weights[client]
                for node, client in client_at.items()
                if client in self.max_weights
            },
            group=round_group(phase, number),
            faults={node: reason for node, reason in faults.items() if node not in client_at},
        )
        capturing, manager = CapturingStrategy(self.masked, grid), SimpleClientManager()
        for node in client_at:
            manager.register(GridClientProxy(node, grid, run_id=0))
        context = LegacyContext(
            Context(run_id=0, node_id=0, node_config={}, state=RecordDict(), run_config={}),
            config=ServerConfig(num_rounds=1),
            strategy=capturing,
            client_manager=manager,
        )
        config = ConfigRecord({WorkflowKey.CURRENT_ROUND: self._given(number)[0]})
        context.state.config_records[MAIN_CONFIGS_RECORD] = config
        record = parameters_to_arrayrecord(legacy_api.to_parameters(begin), keep_input=True)
        context.state.array_records[MAIN_PARAMS_RECORD] = record
        try:
            grid.run_round(self.masked.workflow, context)
        except SilentError:
            for node, reason in current.faults.items():
                logger.warning(f"left out of the round: client {names[node]!r}: {reason}")
            raise
        result = RoundResult(
            faults=current.faults,
            upload_bytes=current.upload_bytes,
            download_bytes=current.download_bytes,
        )
        if not capturing.results:
            reason = current.spoilt or "too few clients stayed in it"
            logger.warning(f"secure aggregation did not complete: {reason}")
            return result
        mean = legacy_api.to_state(capturing.mean, self.template)
        weights = {
            client_at[int(proxy.cid)]: int(fit.num_examples) for proxy, fit in capturing.results
        }
        for line in legacy_api.warnings(self.masked.workflow, [*weights.values()]):
            logger.warning(line)
        return replace(
            result,
            updates=[Update(client, mean, weight) for client, weight in weights.items()],
            digests={client_at[node]: digest for node, digest in current.digests.items()},
        )
