"""A workflow that records, after each round under SecAgg+, who is in the mean with which weight.

It is the counterpart of `recording`. Weights and digests are what the clients report: the server
sees neither their updates nor the updates' distances from the mean.
"""

from __future__ import annotations

from dataclasses import replace

from flwr.app import Context
from flwr.serverapp import Grid

from secede import state as states
from secede.errors import ConfigError
from secede.flower._flwr import (
    ClientManager,
    DefaultWorkflow,
    LegacyContext,
    SecAggPlusWorkflow,
    SimpleClientManager,
)
from secede.flower.rounds.recording import ONLINE_TIMEOUT
from secede.flower.secagg import legacy_api
from secede.flower.secagg.legacy_api import SecAggSettings
from secede.flower.secagg.strategy import RecordingStrategy, TimeoutClientManager, TrainingGrid
from secede.flower.storage.store import Store
from secede.state import State

ROUND_TIMEOUT = 3600.0  # seconds


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
    if not isinstance(workflow, DefaultWorkflow) or not isinstance(
        workflow.fit_workflow, SecAggPlusWorkflow
    ):
        raise ConfigError(
            f"{type(workflow).__name__!r} does not hide updates: give "
            "DefaultWorkflow(fit_workflow=SecAggPlusWorkflow(...)), or record rounds in the open "
            "with recording(FedAvg(), store)"
        )
    return SecureRecording(workflow, store, online_timeout, round_timeout, from_scratch)


class SecureRecording:
    """A workflow under SecAgg+ that records its rounds in a store."""

    def __init__(
        self,
        inner: DefaultWorkflow,
        store: Store,
        online_timeout: float,
        round_timeout: float,
        from_scratch: bool,
    ) -> None:
        assert isinstance(inner.fit_workflow, SecAggPlusWorkflow)  # that was checked
        self.inner, self.store, self.workflow = inner, store, inner.fit_workflow
        self._online_timeout, self._round_timeout = online_timeout, round_timeout
        self._from_scratch = from_scratch

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
            begin = self.store.start_training(
                config.num_rounds, given=states.digest(initial), from_scratch=self._from_scratch
            )
            model = None if begin is None else self.store.last_model()
            done = 0 if begin is None else min(begin.rounds, config.num_rounds)
            training_grid = TrainingGrid(
                grid, self.store, self._round_timeout, masked.workflow.max_weight
            )
            recorder = RecordingStrategy(
                masked,
                self.store,
                training_grid,
                initial if model is None else model,
                self._online_timeout,
            )
            recorder.run, recorder.done = str(context.run_id), done
            context.strategy = recorder
            context.config = replace(config, num_rounds=config.num_rounds - done)
            context.client_manager = TimeoutClientManager(self._online_timeout)
            try:
                workflow = DefaultWorkflow(recorder.run_round, self.inner.evaluate_workflow)
                workflow(training_grid, context)
            finally:
                training_grid.ended = True
                context.strategy, context.client_manager = strategy, manager
                context.config = config
            self.store.finish_training()

    def _initial(self, masked: SecAggSettings, manager: ClientManager) -> State:
        """Return the weights that the training is started with."""
        parameters = masked.strategy.initialize_parameters(manager)
        if parameters is not None:
            return legacy_api.to_state(parameters, self.store.template)
        last = None if self._from_scratch else self.store.last_model()
        if last is None:
            raise ConfigError(
                "the strategy has no initial_parameters, from which the training would begin: give "
                "it those of load_model()"
            )
        return last


Secure = SecAggPlusWorkflow | SecureRecording  # what `secure=` takes
