"""A workflow that remembers: after every mean under SecAgg+, who is in it with which weight.

As `recording` does in the open. Weights and digests are what clients tell: the server sees neither
their updates nor how far those lie from the mean.
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

ROUND_TIMEOUT = 3600.0


def secure_recording(
    workflow: DefaultWorkflow,
    store: Store,
    *,
    online_timeout: float = ONLINE_TIMEOUT,
    round_timeout: float = ROUND_TIMEOUT,
    from_scratch: bool = False,
) -> SecureRecording:
    """Return a workflow that does what `workflow` does and lets clients be erased later.

    It must be a DefaultWorkflow whose fit workflow is SecAgg+'s. `online_timeout` is how long it
    waits for clients before each round, `round_timeout` how long for answers in it. Where a
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
    """A workflow under SecAgg+ whose rounds are written down."""

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
        self._wait_seconds, self._round_seconds = online_timeout, round_timeout
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
        usual, manager, config = context.strategy, context.client_manager, context.config
        with self.store.lock():
            given = self._given(masked, manager)
            begun = states.digest(given)
            on = self.store.start_training(
                config.num_rounds, given=begun, from_scratch=self._from_scratch
            )
            model = None if on is None else self.store.last_model()
            done = 0 if on is None else min(on.rounds, config.num_rounds)
            shown = TrainingGrid(grid, self.store, self._round_seconds, masked.workflow.max_weight)
            begin = given if model is None else model
            heard = RecordingStrategy(masked, self.store, shown, begin, self._wait_seconds)
            heard.run, heard.done = str(context.run_id), done
            context.strategy = heard
            context.config = replace(config, num_rounds=config.num_rounds - done)
            context.client_manager = TimeoutClientManager(self._wait_seconds)
            try:
                DefaultWorkflow(heard.round, self.inner.evaluate_workflow)(shown, context)
            finally:
                shown.ended = True
                context.strategy, context.client_manager = usual, manager
                context.config = config
            self.store.finish_training()

    def _given(self, masked: SecAggSettings, manager: ClientManager) -> State:
        """Return the weights that the training is started with."""
        found = masked.strategy.initialize_parameters(manager)
        if found is not None:
            return legacy_api.to_state(found, self.store.template)
        last = None if self._from_scratch else self.store.last_model()
        if last is None:
            raise ConfigError(
                "the strategy has no initial_parameters: give it those of load_model(), so that it "
                "is known what the training begins with"
            )
        return last


Secure = SecAggPlusWorkflow | SecureRecording  # either says how updates are hidden
