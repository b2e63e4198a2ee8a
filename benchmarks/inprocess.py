"""A grid in one process: messages cross as bytes, clients work one after the other."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity


class InProcess(Grid):
    """Some nodes that all run one app."""

    def __init__(self, app: ClientApp, clients: int, folder: Path, config: dict[str, Any]) -> None:
        TaskIdentity.task_id = TaskIdentity.node_id = TaskIdentity.run_id = 1
        self._app, self._config, self._numbers = app, config, itertools.count(1)
        self._state = {node: RecordDict() for node in range(100, 100 + clients)}
        self._nodes: dict[int, dict[str, Any]] = {
            node: {
                "partition-id": node - 100,
                "num-partitions": clients,
                "secede-folder": str(folder),
            }
            for node in self._state
        }
        self._replies: dict[str, Message] = {}

    def set_run(self, run: Any) -> None:
        """Do nothing: there is one run."""

    @property
    def run(self) -> Any:
        """The run."""
        return SimpleNamespace(run_id=1)

    def create_message(self, *_: Any, **__: Any) -> Message:
        """Refuse: messages are made with Message(...)."""
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        """Return all nodes."""
        return list(self._nodes)

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return all nodes, with names."""
        return [NodeInfo(node_id=node, name=f"site-{node - 99}") for node in self._nodes]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Let the clients work."""
        found = []
        for message in messages:
            number = f"message-{next(self._numbers)}"
            message.metadata.__dict__["_message_id"] = number
            arrived = message_from_proto(message_to_proto(message))
            node = message.metadata.dst_node_id
            here = Context(1, node, self._nodes[node], self._state[node], self._config)
            reply = self._app(arrived, here)
            reply.metadata.__dict__["_message_id"] = f"reply-to-{number}"
            self._replies[number] = message_from_proto(message_to_proto(reply))
            found.append(number)
        return found

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies."""
        return [self._replies.pop(each) for each in list(message_ids) if each in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Let the clients work and return their replies."""
        return self.pull_messages(self.push_messages(messages))
