"""A federation under SecAgg+ in one process: real ClientApps and Flower's own protocol.

Every message crosses as bytes, and what the server gets to see is kept, so that a test can look
for updates in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Context, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import FitRes, Parameters, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.common import Status as FitStatus
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.common.typing import Code
from flwr.compat.common import recorddict_compat as legacy
from flwr.proto.recorddict_pb2 import RecordDict as ProtoRecordDict
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from torch import Tensor, nn

from secede.flower import ClientErasure
from secede.flower.client import FOLDER

Mod = Callable[..., Message]
SIZES = {11: 60, 12: 90, 13: 150, 14: 210}  # samples of each node: unequal
SHAPE, CLASSES = (1, 8, 8), 3


def load_model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, CLASSES))


def load_data(context: Context) -> tuple[Tensor, Tensor]:
    node = context.node_id
    draw = torch.Generator().manual_seed(node)
    y = torch.randint(CLASSES, (SIZES[node],), generator=draw)
    x = torch.rand((SIZES[node], *SHAPE), generator=draw) + y.view(-1, 1, 1, 1) * 0.5
    return x, y


class Wire(Grid):
    """Carries messages to the ClientApps of some nodes as bytes, and keeps all answers' bytes."""

    def __init__(self, app: ClientApp, folder: Path, nodes: Sequence[int] = tuple(SIZES)) -> None:
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # a ServerApp has one
        self.app, self.nodes = app, list(nodes)
        self.seen: list[tuple[str, bytes]] = []  # what reaches the server: type and bytes
        self.contexts = {
            node: Context(
                run_id=1,
                node_id=node,
                node_config={FOLDER: str(folder / str(node))},
                state=RecordDict(),
                run_config={},
            )
            for node in SIZES
        }

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        return [self._carry(message) for message in messages]

    def _carry(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        arrived = Message(
            _copy(message.content)[0],
            dst_node_id=node,
            message_type=message.metadata.message_type,
            group_id=message.metadata.group_id,
        )
        reply = self.app(arrived, self.contexts[node])
        content, data = _copy(reply.content)
        self.seen.append((message.metadata.message_type, data))
        return Message(content, reply_to=arrived)

    def get_node_ids(self) -> list[int]:
        return self.nodes

    def set_run(self, run: Run) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Run:
        return Run.create_empty(run_id=1)

    def create_message(self, *_: Any, **__: Any) -> Message:
        raise NotImplementedError

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError


def make_app(*mods: Mod) -> tuple[ClientApp, dict[int, list[np.ndarray]]]:
    """Return an app, and what each node's training function gave at last, before all mods."""
    app, trained = ClientApp(mods=list(mods)), dict[int, list[np.ndarray]]()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        given = legacy.recorddict_to_fitins(message.content, keep_input=True).parameters
        model, (x, y) = load_model(), load_data(context)
        model.load_state_dict(as_state(given))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        trained[context.node_id] = [v.numpy().copy() for v in model.state_dict().values()]
        result = FitRes(
            status=FitStatus(code=Code.OK, message=""),
            parameters=ndarrays_to_parameters(trained[context.node_id]),
            num_examples=len(y),
            metrics={},
        )
        return Message(legacy.fitres_to_recorddict(result, keep_input=False), reply_to=message)

    return app, trained


def run(grid: Wire, start: dict[str, Tensor], rounds: int, *, secure: bool) -> dict[str, Tensor]:
    """Train `rounds` rounds on the grid's nodes, under SecAgg+ or plainly; return the model."""
    initial = ndarrays_to_parameters([value.numpy() for value in start.values()])
    count = len(grid.nodes)
    strategy = FedAvg(
        fraction_evaluate=0.0,
        min_fit_clients=count,
        min_available_clients=count,
        initial_parameters=initial,
    )
    context = LegacyContext(
        Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config={}),
        config=ServerConfig(num_rounds=rounds),
        strategy=strategy,
    )
    workflow = SecAggPlusWorkflow(num_shares=1.0, reconstruction_threshold=0.5, timeout=60.0)
    DefaultWorkflow(fit_workflow=workflow if secure else None)(grid, context)
    record = context.state.array_records["parameters"]
    return as_state(legacy.arrayrecord_to_parameters(record, keep_input=True))


def as_state(parameters: Parameters) -> dict[str, Tensor]:
    """Return legacy parameters under the model's names."""
    arrays = parameters_to_ndarrays(parameters)
    names = load_model().state_dict()
    return {n: torch.from_numpy(np.array(a)) for n, a in zip(names, arrays, strict=True)}


def _copy(content: RecordDict) -> tuple[RecordDict, bytes]:
    data = recorddict_to_proto(content).SerializeToString()
    return recorddict_from_proto(ProtoRecordDict.FromString(data)), data


def capturing() -> tuple[ClientErasure, Mod]:
    """Return an erasure and SecAgg+'s mod, to be put around it."""
    return ClientErasure(load_model, load_data), secaggplus_mod
