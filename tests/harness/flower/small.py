"""A federation whose rounds take milliseconds, as a Flower app and as the simulator has it.

Both train by the same code, with the same samples and the same names for all that is random, so
that their states can be compared to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from torch import Tensor, nn

from harness.flower.inprocess import InProcess, Site, sites
from harness.lines import Lines
from secede import state as states
from secede.data.samples import Samples
from secede.erasure.planning.options import EraseOptions
from secede.erasure.workflow.erase import Outcome
from secede.federation.engine import LocalTraining
from secede.federation.simulator import Simulator
from secede.federation.training import orders, train
from secede.flower import ClientErasure, Store, erase, recording
from secede.flower.rounds.recording import Recording
from secede.seeding import derive, generator, torch_seeded

SEED, CLASSES, FEATURES = 5, 3, 12
SIZES = (60, 90, 120, 45)  # unequal
TRAINING = LocalTraining(learning_rate=0.1, momentum=0.9, batch_size=16, epochs=1)
NOW = datetime(2026, 11, 15, 12, 0, 0, tzinfo=UTC)
# A step that moves little: what is tested is the way, not the method.
STEP = {"epochs": 1, "batch_size": 16, "learning_rate": 0.1, "stop_distance": 100.0}
OPTIONS = EraseOptions(
    methods=("projected-ascent",),
    settings={"projected-ascent": STEP},
    leaver_timeout=0.3,
    client_timeout=0.3,
)


def load_model() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 16), nn.ReLU(), nn.Linear(16, CLASSES))


def samples(client: int) -> Samples:
    draw = torch.Generator().manual_seed(100 + client)
    y = torch.randint(CLASSES, (SIZES[client],), generator=draw)
    x = torch.rand((SIZES[client], FEATURES), generator=draw)
    x[torch.arange(len(y)), y] += 1.0
    return Samples(x, y)


def initial() -> dict[str, Tensor]:
    return simulator().initial_state("initial")


def simulator() -> Simulator:
    clients = [samples(client) for client in range(len(SIZES))]
    return Simulator(clients, load_model, training=TRAINING, seed=SEED, executor="loop")


def load_data(context: Context) -> tuple[Tensor, Tensor]:
    found = samples(int(context.node_config["partition-id"]))
    return found.x, found.y


def train_here(message: Message, context: Context) -> Message:
    """Train as the simulator does: the group names phase and round, or it is plain training."""
    client = int(context.node_config["partition-id"])
    group = message.metadata.group_id.split("/")
    content: Any = message.content
    number = int(content["config"]["server-round"])
    phase, number = (group[1], int(group[2])) if len(group) == 3 else ("training", number)
    model = load_model()
    states.load_into(model, content["arrays"].to_torch_state_dict())
    here = samples(client)
    draw = generator(SEED, "batches", phase, number, client)
    with torch_seeded(derive(SEED, "noise", phase, number, client)):
        train(model, here, TRAINING, orders=orders(len(here), TRAINING.epochs, draw))
    update = RecordDict(
        {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": len(here), "loss": 1.0}),
        }
    )
    return Message(update, reply_to=message)


def client_app(
    mods: Sequence[Any] = (), train_mods: Sequence[Any] = (), **options: Any
) -> ClientApp:
    """Return an app with our mod, others around it and others inside."""
    usual: dict[str, Any] = {"training": TRAINING, "seed": SEED, "consent": True}
    erasure = ClientErasure(load_model, load_data, **{**usual, **options})
    app = ClientApp(mods=[*mods, erasure.mod])
    app.train(mods=list(train_mods))(train_here)
    return erasure.register(app)


def strategy(**options: Any) -> FedAvg:
    return FedAvg(fraction_evaluate=0.0, **options)


class Federation:
    """Sites, a store and an app, in one folder; `grid` gives a fresh run."""

    def __init__(self, folder: Path, *, app: ClientApp | None = None, **site_options: Any) -> None:
        self.folder, self.told = folder, Lines()
        self.sites: list[Site] = sites(len(SIZES), folder, **site_options)
        self.app = app or client_app()
        self.clock: Callable[[], datetime] = lambda: NOW
        self.runs = 0

    @property
    def store(self) -> Store:
        return Store(
            self.folder / "home",
            load_model,
            name="north",
            clock=lambda: self.clock(),
        )

    def grid(self) -> InProcess:
        self.runs += 1
        for site in self.sites:
            site.state = RecordDict()  # empty in each run
        return InProcess(self.sites, self.app, run=self.runs)

    def recording(self, **options: Any) -> Recording:
        return recording(strategy(**options), self.store, online_timeout=0.3)

    def train(self, rounds: int = 3, *, grid: InProcess | None = None, **options: Any) -> None:
        begin = self.store.last_model() or initial()
        self.recording(**options).start(
            grid or self.grid(),
            ArrayRecord(begin),
            num_rounds=rounds,
            timeout=5,
            train_config=ConfigRecord({"lr": 0.1}),
        )

    def erase(self, leaver: str = "name:site-1", **options: Any) -> Outcome:
        grid = options.pop("grid", None) or self.grid()
        options = {"options": OPTIONS, "seed": SEED, "trigger": "other", **options}
        return erase(
            grid,
            strategy(),
            self.store,
            leaver=leaver,
            round_timeout=0.4,
            online_timeout=0.2,
            pause=0.01,
            **options,
        )

    def site(self, name: str) -> Site:
        return next(site for site in self.sites if site.name == name)
