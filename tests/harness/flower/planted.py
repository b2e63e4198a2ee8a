"""A federation whose sites plant canaries in what they train on, by the one line of the docs."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.datasets import load_digits
from torch import Tensor, nn

from harness.flower.inprocess import InProcess
from harness.flower.journals import told
from harness.flower.small import SEED, Federation
from secede import state as states
from secede.canaries import CanaryOptions
from secede.data.samples import Samples
from secede.erasure.planning.options import EraseOptions
from secede.erasure.workflow.erase import Outcome
from secede.federation.engine import LocalTraining
from secede.federation.training import orders, train
from secede.flower import ClientErasure, Store
from secede.flower.client.own_canaries import SALT

CANARIES = CanaryOptions(count=10, copies=3, max_share=0.1)
TRAINING = LocalTraining(learning_rate=0.1, momentum=0.9, batch_size=32, epochs=4)
ERASING = EraseOptions(leaver_timeout=0.4, client_timeout=0.4)
Load = Callable[[Context], tuple[Tensor, Tensor]]


def load_model() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


@cache
def digits() -> tuple[Tensor, Tensor]:
    images, labels = load_digits(return_X_y=True)
    return torch.tensor(images / 16, dtype=torch.float32).view(-1, 1, 8, 8), torch.tensor(labels)


def load_data(context: Context) -> tuple[Tensor, Tensor]:
    """Return every fourth image."""
    images, labels = digits()
    mine = slice(int(context.node_config["partition-id"]), None, 4)
    return images[mine], labels[mine]


def planting_app(load: Load = load_data, **options: Any) -> ClientApp:
    """Return an app that plants canaries in what `load` gives."""
    usual = {"training": TRAINING, "seed": SEED, "consent": True, "canaries": CANARIES}
    erasure = ClientErasure(load_model, load, **{**usual, **options})
    app = ClientApp(mods=[erasure.mod])

    @app.train()
    def train_here(message: Message, context: Context) -> Message:
        content: Any = message.content
        model = load_model()
        states.load_into(model, content["arrays"].to_torch_state_dict())
        x, y = erasure.with_canaries(load(context), context)
        draw = torch.Generator().manual_seed(int(content["config"]["server-round"]))
        train(model, Samples(x, y), TRAINING, orders=orders(len(y), TRAINING.epochs, draw))
        metrics = MetricRecord({"num-examples": len(y)})
        update = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
        return Message(update, reply_to=message)

    return erasure.register(app)


class PlantedFederation(Federation):
    """A federation with such an app."""

    def __init__(self, folder: Path, *, load: Load = load_data, **options: Any) -> None:
        super().__init__(folder, app=planting_app(load, **options))
        for n in range(len(self.sites)):
            if not (salt := self.disk(n) / SALT).exists():
                salt.parent.mkdir(parents=True)
                salt.write_bytes(bytes([n]) * 32)

    def disk(self, n: int) -> Path:
        return self.folder / f"disk-{n}" / f"partition-{n}"

    @property
    def store(self) -> Store:
        return Store(self.folder / "home", load_model, name="north", clock=lambda: self.clock())

    def train(self, rounds: int = 4, *, grid: InProcess | None = None, **options: Any) -> None:
        torch.manual_seed(0)
        begin = self.store.last_model() or load_model().state_dict()
        self.recording(**options).start(
            grid or self.grid(),
            ArrayRecord(begin),
            num_rounds=rounds,
            timeout=5,
            train_config=ConfigRecord({"lr": 0.1}),
        )

    def erase(self, leaver: str = "name:site-1", **options: Any) -> Outcome:
        return super().erase(leaver, **{"options": ERASING, **options})


def verdict(outcome: Outcome) -> dict[str, Any]:
    """Return what the receipt says of its verification."""
    assert outcome.receipt is not None
    found: dict[str, Any] = told(outcome.receipt)["verification"]
    return found
