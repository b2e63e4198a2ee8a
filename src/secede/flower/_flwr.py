"""What secede takes from Flower beyond flwr.app, flwr.clientapp and flwr.serverapp.

Nothing else in secede imports Flower's internals or touches private attributes of its objects, so
a new release of Flower is a diff of this file.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import Error, Message, RecordDict
from flwr.app.message import make_message
from flwr.client.mod import secagg_mod, secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import (
    EvaluateIns,
    EvaluateRes,
    FitIns,
    FitRes,
    Parameters,
    Scalar,
    bytes_to_ndarray,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from flwr.common.constant import ErrorCode
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS as SECAGG_CONFIGS
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_STATE as SECAGG_STATE
from flwr.common.secure_aggregation.secaggplus_constants import Key as SecAggKey
from flwr.common.secure_aggregation.secaggplus_constants import Stage
from flwr.common.serde import (
    message_from_proto,
    message_to_proto,
    recorddict_from_proto,
    recorddict_to_proto,
)
from flwr.common.serde_utils import metadata_from_proto
from flwr.compat.common.recorddict_compat import parameters_to_arrayrecord, recorddict_to_fitres
from flwr.proto.message_pb2 import Message as MessageProto
from flwr.proto.message_pb2 import Metadata as MetadataProto
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.recorddict_pb2 import RecordDict as RecordDictProto
from flwr.server import ClientManager, LegacyContext, ServerConfig, SimpleClientManager
from flwr.server.client_proxy import ClientProxy
from flwr.server.compat.grid_client_proxy import GridClientProxy
from flwr.server.strategy import FedAvg as LegacyFedAvg
from flwr.server.strategy import FedProx as LegacyFedProx
from flwr.server.strategy import Strategy as LegacyStrategy
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD
from flwr.server.workflow.constant import Key as WorkflowKey
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import Run, RunNotRunningException
from flwr.supercore.task_identity import TaskIdentity

logger = logging.getLogger(__name__)

SERVER_NODE = 1  # the SuperLink's own id, which answers for nodes that went away


def act_as_server(run_id: int) -> None:
    """Send messages as a ServerApp of this run: Flower takes a message's sender from here."""
    TaskIdentity.task_id = TaskIdentity.node_id = SERVER_NODE
    TaskIdentity.run_id = run_id


def set_message_id(message: Message, message_id: str) -> None:
    """Give a message its id, as a SuperLink does when it takes the message."""
    message.metadata.__dict__["_message_id"] = message_id


def answer_as_server(reply: Message) -> None:
    """Mark a reply as the server's own, not the client's: the SuperLink's mark of a lost node."""
    reply.metadata.__dict__["_src_node_id"] = SERVER_NODE


def message_like(message: Message, kind: str, content: RecordDict) -> Message:
    """Return a message of another kind and content that came as `message` did."""
    metadata = copy.copy(message.metadata)
    metadata.__dict__["_message_type"] = kind
    return make_message(metadata, content=content)


def message_to_bytes(message: Message, *, arrays: bool = True) -> bytes:
    """Return a message as Flower puts it on the wire, with its array records or without."""
    proto = message_to_proto(message)
    if not arrays:
        rest = [item for item in proto.content.items if item.WhichOneof("value") != "array_record"]
        del proto.content.items[:]
        proto.content.items.extend(rest)
    return bytes(proto.SerializeToString())


def message_from_bytes(data: bytes) -> Message:
    """Return the message that `message_to_bytes` wrote; other bytes raise whatever they lead to."""
    return message_from_proto(MessageProto.FromString(data))


def records_to_bytes(records: RecordDict) -> bytes:
    """Return a message's content as Flower puts it on the wire."""
    return bytes(recorddict_to_proto(records).SerializeToString())


def records_from_bytes(data: bytes) -> RecordDict:
    """Return the content that `records_to_bytes` wrote; other bytes raise whatever they lead to."""
    return recorddict_from_proto(RecordDictProto.FromString(data))


def client_mods(app: ClientApp) -> list[object]:
    """Return the mods around all of an app, outermost first."""
    return list(getattr(app, "_mods", ()))


def has_client_fn(app: ClientApp) -> bool:
    """Return whether an app is made of a `client_fn`: such an app takes no handlers."""
    return getattr(app, "_call", None) is not None


def is_legacy_strategy(strategy: object) -> bool:
    """Return whether a strategy is, or inherits from, one of Flower's legacy stack."""
    return any(kind.__module__.startswith("flwr.server.") for kind in type(strategy).__mro__)


def is_network(grid: Grid) -> bool:
    """Return whether a grid is Flower's own over the network."""
    return type(grid).__name__ == "HttpGrid"


class _NotingClient:
    """A client of the SuperLink that notes under which metadata it took each reply."""

    def __init__(self, inner: Any) -> None:
        self._inner, self.metadata = inner, dict[str, Any]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def PullMessages(self, request: Any) -> Any:  # noqa: N802 - Flower's name
        response = self._inner.PullMessages(request)
        self.metadata |= {
            found.metadata.message_id: found.metadata for found in response.messages_list
        }
        return response


def pull_checked(grid: Grid, network: Grid, message_ids: Iterable[str]) -> list[Message]:
    """Return the replies that `grid` has from `network`, with the senders that the SuperLink knows.

    Flower reads a reply's sender and question from the sender's own bytes, and raises where it
    cannot read them: one client could speak as another, or end the run. Such a reply is an error.
    """
    from flwr.superlink.grid import http_grid

    if not isinstance(network, http_grid.HttpGrid):
        return list(grid.pull_messages(message_ids))
    vars(http_grid)["inflate_object_from_contents"] = _inflated
    if not isinstance(network._runtime_client, _NotingClient):
        vars(network)["_client"] = _NotingClient(network._runtime_client)
    noted: dict[str, Any] = vars(network)["_client"].metadata
    return [
        _as_noted(reply, noted.pop(reply.metadata.message_id, None))
        for reply in grid.pull_messages(message_ids)
    ]


def _inflated(object_id: str, contents: dict[str, bytes]) -> Message:
    """Return the message in some bytes; one that fits no question if it cannot be read."""
    try:
        found = inflate_object_from_contents(object_id, contents)
        if isinstance(found, Message):
            return found
    except Exception:  # whatever a stranger's bytes lead to
        logger.debug("a reply cannot be read", exc_info=True)
    nobodys = metadata_from_proto(MetadataProto(message_type="query"))
    return make_message(nobodys, error=Error(ErrorCode.UNKNOWN))


def _as_noted(reply: Message, noted: Any) -> Message:
    """Return a reply; an error in its place if it says that it is of another sender or question."""
    names = ("run_id", "src_node_id", "reply_to_message_id", "message_type")
    # Flower's own error for a reply that did not arrive has no id.
    if noted is None or all(getattr(reply.metadata, n) == getattr(noted, n) for n in names):
        return reply
    reason = "its reply cannot be read, or is in another's name"
    return make_message(metadata_from_proto(noted), error=Error(ErrorCode.UNKNOWN, reason))


def is_simulation(grid: Grid) -> bool:
    """Return whether a grid is that of a simulation."""
    return type(grid).__name__ == "InMemoryGrid"


def wrap_served_apps(wrap: Callable[[Any], Any]) -> None:
    """Let `wrap` stand around the apps that this process serves as a SuperLink or SuperNode."""
    from flwr.superlink import main as superlink
    from flwr.supernode import main as supernode

    for served in (superlink, supernode):
        vars(served)["create_app"] = _wrapped(vars(served)["create_app"], wrap)


def _wrapped(create: Callable[..., Any], wrap: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: wrap(create(*args, **kwargs))
