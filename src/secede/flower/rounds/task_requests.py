"""Tasks for clients: one task sent to several clients at once, and their replies."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from flwr.app import Message

from secede.errors import RecordError, SecedeError, SilentError
from secede.federation.engine import ClientSide, Cost, ReplyT, RoundReply
from secede.flower.protocol import arrays, messages
from secede.flower.protocol.nodes import Node
from secede.flower.rounds.transport import Transport
from secede.state import State
from secede.unlearning import client_tasks
from secede.unlearning.client_tasks import Task, TaskMessage
from secede.unlearning.method import LocalResult, Reply

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RecordedUpdate:
    """A client's last update as the server recorded it: share of the last mean, and digest."""

    weight: float
    digest: str | None


@dataclass(frozen=True)
class TaskRequest:
    """A task, the form in which it is sent, and the state that it works on."""

    task: Task
    form: TaskMessage
    state: State
    number: int = 0


@dataclass(frozen=True, kw_only=True)
class TaskReplies:
    """Replies and failures by client; a client in neither was silent."""

    replies: Mapping[int, LocalResult | Reply]
    failures: Mapping[int, SecedeError]
    crashed: frozenset[int] = frozenset()  # failures of the client's app, which may be temporary
    cost: Cost


@dataclass(frozen=True, kw_only=True)
class TaskSender:
    """Sends tasks to clients, with what the server recorded of their updates."""

    transport: Transport
    clients: Mapping[int, Node]
    own: Mapping[int, RecordedUpdate]
    template: State
    home: str = ""

    def send(
        self, clients: Sequence[int], request: TaskRequest, *, timeout: float, node_timeout: float
    ) -> TaskReplies:
        """Send a task to the clients that are online within `node_timeout`; end after `timeout`."""
        started = time.monotonic()
        wanted = [self.clients[client] for client in clients]
        online = self.transport.wait_for_nodes(wanted, node_timeout)
        left = max(timeout - (time.monotonic() - started), self.transport.pause)
        client_at = {
            online[name].node: client
            for client in clients
            if (name := self.clients[client].name) in online
        }
        sent = [self._message(node, client, request, left) for node, client in client_at.items()]
        names = {node: self.clients[client].name for node, client in client_at.items()}
        answers = self.transport.send(sent, names, left)
        replies, failures = dict[int, LocalResult | Reply](), dict[int, SecedeError]()
        for node, message in answers.received.items():
            try:
                found = messages.read_reply(message, request.task, self.template, names[node])
                replies[client_at[node]] = found
            except SecedeError as error:
                logger.warning(str(error))
                failures[client_at[node]] = _without_words(error, names[node])
        for node, reason in answers.failed.items():
            logger.warning(f"client {names[node]!r} failed: {reason}")
            failures[client_at[node]] = _without_words(RecordError(), names[node])
        for node, reason in answers.lost.items():
            logger.warning(f"client {names[node]!r} went away: {reason}")
        cost = Cost(
            upload_bytes=sum(arrays.size_bytes(message) for message in answers.received.values()),
            download_bytes=sum(arrays.size_bytes(message) for message in sent),
            gradient_samples=sum(reply.gradient_samples for reply in replies.values()),
            seconds=time.monotonic() - started,
        )
        crashed = frozenset(client_at[node] for node in answers.failed)
        return TaskReplies(replies=replies, failures=failures, crashed=crashed, cost=cost)

    def _message(self, node: int, client: int, request: TaskRequest, ttl: float) -> Message:
        form = request.form
        own = self.own.get(client) if form.name == client_tasks.LOCAL_STEP else None
        asked = messages.TaskHeader(
            task=form.name,
            method=form.method,
            settings=dict(form.settings),
            client=client,
            number=request.number,
            weight=own.weight if own else 0.0,
            own=own.digest if own else None,
            home=self.home,
        )
        return messages.task_message(node, asked, request.state, ttl=ttl)


def _without_words(error: SecedeError, who: str) -> SecedeError:
    """Return an error of the same kind without the client's own words, fit for the journal."""
    kind = type(error)
    return kind(f"client {who!r}: {kind.__name__}; its own words were logged and are not kept")


@dataclass(frozen=True)
class CollectedReplies:
    """An engine that returns replies which have come already."""

    collected: TaskReplies

    def train_round(
        self, state: State, clients: Sequence[int], *, phase: str, number: int
    ) -> RoundReply:
        """Refuse: no replies of a round were collected."""
        raise SilentError("no round can be taken from collected replies")

    def ask(
        self,
        client: int,
        task: Callable[[ClientSide], ReplyT],
        *,
        global_state: State,
        number: int = 0,
    ) -> tuple[ReplyT, Cost]:
        """Return the answer that answers."""
        if client not in self.collected.replies:
            raise SilentError(f"client {client} did not answer")
        return cast("ReplyT", self.collected.replies[client]), Cost()
