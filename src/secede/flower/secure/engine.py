"""Rounds under SecAgg+: the server gets the mean, and of each client its weight and a digest.

Every update of a round is that mean, as Flower itself hands it to a strategy, so that whatever is
made of them, weighted by samples, is the mean again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flwr.app import ConfigRecord, Context, RecordDict
from flwr.common import EvaluateIns, EvaluateRes, FitRes, Parameters, Scalar
from flwr.compat.common.recorddict_compat import parameters_to_arrayrecord
from flwr.server import ClientManager, LegacyContext, ServerConfig, SimpleClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.compat.grid_client_proxy import GridClientProxy
from flwr.server.strategy import Strategy
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key

from secede.federation.engine import Update
from secede.flower.client import group
from secede.flower.live import Came, LiveEngine
from secede.flower.secure import legacy
from secede.flower.secure.carrying import Carried, Carrying, Configured
from secede.flower.secure.legacy import Masked
from secede.state import State

Results = list[tuple[ClientProxy, FitRes]]
Failures = list[tuple[ClientProxy, FitRes] | BaseException]


class Hearing(Strategy):
    """A strategy that configures a round as another does, and keeps what came of it."""

    def __init__(self, inner: Strategy, grid: Carrying) -> None:
        self.inner, self.results, self._grid = inner, Results(), grid

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> Configured:
        """Let the other do it, for all who are still in the round."""
        made = self.inner.configure_fit(server_round, parameters, client_manager)
        return self._grid.left(made)

    def aggregate_fit(
        self, server_round: int, results: Results, failures: Failures
    ) -> tuple[Parameters | None, dict[str, Scalar]]:
        """Keep the results: who is in the mean with which weight, and the mean itself."""
        self.results = results
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

    masked: Masked

    def _exchanged(
        self,
        state: State,
        at: Mapping[int, int],
        names: Mapping[int, str],
        *,
        phase: str,
        number: int,
    ) -> Came:
        grid = Carrying(
            self.exchange,
            like=self.like,
            home=self.home,
            most=self.masked.workflow.max_weight,
            seconds=self.round_seconds,
        )
        own = {node: self.own.get(client) for node, client in at.items()}
        grid.round = Carried(
            names=names,
            serving={node: known.digest for node, known in own.items() if known},
            heaviest={n: self.heaviest[c] for n, c in at.items() if c in self.heaviest},
            group=group(phase, number),
        )
        heard, manager = Hearing(self.masked.whole(), grid), SimpleClientManager()
        for node in at:
            manager.register(GridClientProxy(node, grid, run_id=0))
        context = LegacyContext(
            Context(run_id=0, node_id=0, node_config={}, state=RecordDict(), run_config={}),
            config=ServerConfig(num_rounds=1),
            strategy=heard,
            client_manager=manager,
        )
        told = ConfigRecord({Key.CURRENT_ROUND: self.first_round + number})
        context.state.config_records[MAIN_CONFIGS_RECORD] = told
        begin = legacy.to_parameters({name: state[name] for name in self.like})
        record = parameters_to_arrayrecord(begin, keep_input=True)
        context.state.array_records[MAIN_PARAMS_RECORD] = record
        grid.carry(self.masked.workflow, context)
        here = grid.round
        if not heard.results:
            self.exchange.tell("secure aggregation came to no end: too few clients stayed in it")
            return Came(faults=here.faults, up=here.up, down=here.down)
        mean = legacy.to_state(heard.results[0][1].parameters, self.like)
        weights = {at[int(p.cid)]: int(found.num_examples) for p, found in heard.results}
        return Came(
            updates=[Update(client, mean, weight) for client, weight in weights.items()],
            digests={at[node]: digest for node, digest in here.digests.items()},
            faults=here.faults,
            up=here.up,
            down=here.down,
        )
