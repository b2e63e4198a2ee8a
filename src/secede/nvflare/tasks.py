"""NVFlare's clients and tasks as a Flower grid: one task for each message, with a timeout.

Clients are identified by NVFlare's names for them, which its certificates vouch for. A task's
result counts as a reply of the client that the task was for, whatever the result says.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from typing import Any
from uuid import uuid4

from flwr.app import Error, Message
from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.signal import Signal
from nvflare.app_common.utils.fl_model_utils import FLModelUtils

from secede.errors import GuardError, SilentError
from secede.flower._flwr import NodeInfo, Run, act_as_server, answer_as_server, set_message_id
from secede.flower.rounds import BaseGrid, poll
from secede.nvflare import flmodels

_FAILED, _GONE = 1, 2  # codes of errors
_PAUSE = 0.1  # seconds between two polls


class TaskGrid(BaseGrid):
    """A grid over the clients of a job, for a controller whose flow has begun."""

    def __init__(self, controller: Controller, fl_ctx: FLContext, abort: Signal) -> None:
        self._controller, self._fl_ctx, self._abort = controller, fl_ctx, abort
        self._replies = dict[str, Message]()  # by the id of the message
        act_as_server(run_id=node_id_of(str(fl_ctx.get_job_id())))

    def set_run(self, run: Run) -> None:
        """Ignore the run: the job is the run."""

    @property
    def run(self) -> Run:
        """Refuse: there is no run of Flower's."""
        raise NotImplementedError("a job of NVFlare's is no run of Flower's")

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return the connected clients; SilentError if the job is aborted."""
        return [NodeInfo(node_id=node_id_of(name), name=name) for name in self._names()]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send each message as a task for its client."""
        names = {node_id_of(name): name for name in self._names()}
        return [self._push(message, names) for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that have come; SilentError if the job is aborted."""
        self._check_abort()
        replies = [self._replies.pop(message_id, None) for message_id in list(message_ids)]
        return [reply for reply in replies if reply is not None]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and wait for the replies, at most so many seconds."""
        sent = list(messages)
        for message in sent:
            message.metadata.ttl = min(message.metadata.ttl, timeout or math.inf)
        seconds = max((message.metadata.ttl for message in sent), default=0.0)
        return poll(self, sent, seconds, _PAUSE)

    def _push(self, message: Message, names: dict[int, str]) -> str:
        message_id = uuid4().hex
        set_message_id(message, message_id)
        name = names.get(message.metadata.dst_node_id)
        if name is None:  # it went away meanwhile
            self._replies[message_id] = _lost(message, "it is not connected")
            return message_id
        kind, model = flmodels.task_of(message)

        def received(client_task: ClientTask, fl_ctx: FLContext) -> None:
            self._replies[message_id] = _reply(message, client_task.result)
            client_task.result = None  # frees its memory

        def done(task: Task, fl_ctx: FLContext) -> None:
            if all(t.result_received_time is None for t in task.client_tasks):
                reason = f"the task ended as {str(task.completion_status)[:40]}"
                self._replies.setdefault(message_id, _lost(message, reason))

        task = Task(
            name=kind,
            data=FLModelUtils.to_shareable(model),
            timeout=math.ceil(message.metadata.ttl),
            result_received_cb=received,
            task_done_cb=done,
        )
        self._controller.broadcast(task, self._fl_ctx, targets=[name], min_responses=1)
        return message_id

    def _names(self) -> list[str]:
        self._check_abort()
        registered = [str(client.name) for client in self._fl_ctx.get_engine().get_clients()]
        disconnected_at = self._controller.get_client_disconnect_time
        return [name for name in registered if disconnected_at(name) is None]

    def _check_abort(self) -> None:
        if self._abort.triggered:
            raise SilentError("the job was aborted: run it again to resume")


def node_id_of(name: str) -> int:
    """Return the node id of a name, the same in every run."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") >> 1


def _reply(message: Message, result: Any) -> Message:
    code = result.get_return_code()
    if code != ReturnCode.OK:
        return Message(Error(_FAILED, f"NVFlare says {str(code)[:80]}"), reply_to=message)
    try:
        return flmodels.reply_of(message, FLModelUtils.from_shareable(result))
    except GuardError as error:
        return Message(Error(_FAILED, str(error)), reply_to=message)
    except Exception as error:  # any error that a client's result leads to
        reason = f"its result is not a model: {type(error).__name__}"
        return Message(Error(_FAILED, reason), reply_to=message)


def _lost(message: Message, reason: str) -> Message:
    reply = Message(Error(_GONE, reason), reply_to=message)
    answer_as_server(reply)
    return reply
