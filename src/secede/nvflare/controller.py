"""The controller of a job, which trains, or erases one client.

After a kill the same job goes on: training after its last completed round, an erasure after its
last transition. Its state is in the home folder, which must outlive the job's workspace.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from flwr.app import ArrayRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from nvflare.apis.client import Client
from nvflare.apis.fl_constant import FLMetaKey
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from torch import nn

from secede import plugins
from secede.erasure import options_from_json
from secede.errors import ConfigError, SecedeError
from secede.flower import Store as FlowerStore
from secede.flower import erase, recording
from secede.nvflare.tasks import TaskGrid
from secede.seeding import seeded


class Store(FlowerStore):
    """A federation's folder at the server."""

    engine = "nvflare"
    packages = ("nvflare", "flwr")
    weighted_by = FLMetaKey.NUM_STEPS_CURRENT_ROUND


class FederationController(Controller):
    """Trains for `rounds` rounds with weighted means; with a `leaver`, erases that client instead.

    `model` is a factory of networks, `package.module:factory`, and `home` the federation's folder.
    `options` are fields of `EraseOptions`. `request` is the file that the client signed, or
    `trigger` the reason if the operator asks for it. Timeouts are in seconds: `online_timeout` to
    wait for clients before a round of training, `erasure_online_timeout` during an erasure,
    `round_timeout` for each round. `classes` is the number of classes of a network whose last
    linear layer does not have as many outputs.
    """

    def __init__(
        self,
        home: str,
        model: str,
        rounds: int = 3,
        leaver: str = "",
        request: str = "",
        trigger: str = "",
        options: dict[str, Any] | None = None,
        federation: str = "",
        seed: int = 0,
        online_timeout: float = 600.0,
        erasure_online_timeout: float = 120.0,
        round_timeout: float = 3600.0,
        pause: float = 0.2,
        classes: int | None = None,
    ) -> None:
        super().__init__()
        # NVFlare writes a job's configuration from attributes with the arguments' names.
        self.home, self.model, self.rounds = home, model, rounds
        self.leaver, self.request, self.trigger, self.options = leaver, request, trigger, options
        self.federation, self.seed, self.pause = federation, seed, pause
        self.online_timeout, self.erasure_online_timeout = online_timeout, erasure_online_timeout
        self.round_timeout, self.classes = round_timeout, classes

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Set up nothing."""

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Clean up nothing."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Train or erase; an error ends the job with its reason."""
        try:
            self.work(TaskGrid(self, fl_ctx, abort_signal))
        except SecedeError as error:
            self.system_panic(f"secede: {error}", fl_ctx)

    def work(self, grid: Grid) -> None:
        """Train or erase over `grid`."""
        if not Path(self.home).is_absolute():
            raise ConfigError(
                f"home {self.home[:100]!r}: expected an absolute path, since a job's own folder "
                "is deleted with it"
            )
        load_model, classes = _factory(self.model), self.classes
        if classes is not None and (type(classes) is not int or classes < 2):
            raise ConfigError(f"classes {classes!r}: expected a whole number of two or more")
        store = Store(self.home, load_model, name=self.federation or None, classes=classes)
        strategy = recording(
            FedAvg(fraction_evaluate=0.0), store, online_timeout=self.online_timeout
        )
        if not self.leaver:
            strategy.start(
                grid,
                self._first_weights(store),
                num_rounds=self.rounds,
                timeout=self.round_timeout,
            )
            return
        if not self.leaver.startswith("name:"):
            raise ConfigError(f"leaver {self.leaver[:100]!r}: expected name: and a client's name")
        outcome = erase(
            grid,
            strategy,
            store,
            leaver=self.leaver,
            request=Path(self.request) if self.request else None,
            trigger=self.trigger or None,
            options=options_from_json(self.options or {}),
            round_timeout=self.round_timeout,
            online_timeout=self.erasure_online_timeout,
            seed=self.seed,
            pause=self.pause,
        )
        if outcome.model is None:
            raise SecedeError(f"{outcome.client} was not erased: {outcome.state}: {outcome.reason}")

    def process_result_of_unknown_task(
        self, client: Client, task_name: str, client_task_id: str, result: Shareable, fl_ctx: Any
    ) -> None:
        """Log a result that came too late; its sender was left out before."""
        self.log_warning(fl_ctx, f"too late: a result of {client.name} for {task_name!r}")

    def _first_weights(self, store: Store) -> ArrayRecord:
        if last := store.last_model():
            return ArrayRecord(last)
        with seeded(self.seed, "model", "initial"):
            return ArrayRecord(store.load_model().state_dict())


def _factory(value: str) -> Callable[[], nn.Module]:
    factory = plugins.find(value, None, kind="model", form="package.module:factory")
    if not callable(factory):
        raise ConfigError(f"model {value!r} is not callable: give a factory of networks")
    return cast("Callable[[], nn.Module]", factory)
