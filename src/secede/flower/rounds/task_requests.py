"""Questions to clients: one task to several at once, and what came of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from flwr.app import Message

from secede.errors import RecordError, SecedeError, SilentError
from secede.federation.cost import Cost
from secede.federation.engine import ClientSide, ReplyT, RoundReply
from secede.flower.protocol import arrays, messages
from secede.flower.protocol.nodes import Node
from secede.flower.rounds.transport import Transport
from secede.state import State
from secede.unlearning import client_tasks
from secede.unlearning.client_tasks import Task, TaskMessage
from secede.unlearning.local_step import LocalResult
from secede.unlearning.method import Reply

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RecordedUpdate:
    """What the server knows of a client's last update: its share in the last mean, its digest."""

    weight: float
    digest: str | None


@dataclass(frozen=True)
class TaskRequest:
    """A task, the form in which it travels, and the state to do it with."""

    task: Task
    form: TaskMessage
    state: State
    number: int = 0


@dataclass(frozen=True, kw_only=True)
class TaskReplies:
    """Replies and failures by client; whoever is in neither was silent."""

    replies: Mapping[int, LocalResult | Reply]
    failures: Mapping[int, SecedeError]
    crashed: frozenset[int] = frozenset()  # those among them whose app broke off, which may pass
    cost: Cost


@dataclass(frozen=True, kw_only=True)
class TaskSender:
    """Whom to ask, and what the server knows of them."""

    exchange: Transport
    clients: Mapping[int, Node]
    own: Mapping[int, RecordedUpdate]
    like: State
    home: str = ""

    def ask(
        self, clients: Sequence[int], question: TaskRequest, *, seconds: float, gather: float
    ) -> TaskReplies:
        """Ask those who are there, or come within `gather` seconds; all of it ends in `seconds`."""
        started = time.monotonic()
        there = self.exchange.gather([self.clients[client] for client in clients], gather)
        left = max(seconds - (time.monotonic() - started), self.exchange.pause)
        at = {
            there[name].node: client
            for client in clients
            if (name := self.clients[client].name) in there
        }
        made = [self._message(node, client, question, left) for node, client in at.items()]
        names = {node: self.clients[client].name for node, client in at.items()}
        came = self.exchange.send(made, names, left)
        replies, failures = dict[int, LocalResult | Reply](), dict[int, SecedeError]()
        for node, message in came.sound.items():
            try:
                found = messages.read_reply(message, question.task, self.like, names[node])
                replies[at[node]] = found
            except SecedeError as error:
                logger.info(str(error))
                failures[at[node]] = _unsaid(error, names[node])
        for node, reason in came.failed.items():
            logger.info(f"client {names[node]!r} failed: {reason}")
            failures[at[node]] = _unsaid(RecordError(), names[node])
        for node, reason in came.lost.items():
            logger.info(f"client {names[node]!r} went away: {reason}")
        cost = Cost(
            upload_bytes=sum(arrays.size_bytes(message) for message in came.sound.values()),
            download_bytes=sum(arrays.size_bytes(message) for message in made),
            gradient_samples=sum(reply.gradient_samples for reply in replies.values()),
            seconds=time.monotonic() - started,
        )
        crashed = frozenset(at[node] for node in came.failed)
        return TaskReplies(replies=replies, failures=failures, crashed=crashed, cost=cost)

    def _message(self, node: int, client: int, question: TaskRequest, ttl: float) -> Message:
        form = question.form
        own = self.own.get(client) if form.name == client_tasks.LOCAL_STEP else None
        asked = messages.TaskHeader(
            task=form.name,
            method=form.method,
            settings=dict(form.settings),
            client=client,
            number=question.number,
            weight=own.weight if own else 0.0,
            own=own.digest if own else None,
            home=self.home,
        )
        return messages.task_message(node, asked, question.state, ttl=ttl)


def _unsaid(error: SecedeError, who: str) -> SecedeError:
    """Return an error of the same kind without a client's words: it ends in journals."""
    kind = type(error)
    return kind(f"client {who!r}: {kind.__name__}; what it says was printed and is not kept")


@dataclass(frozen=True)
class CollectedReplies:
    """An engine whose clients have answered already."""

    answers: TaskReplies

    def train_round(
        self, state: State, clients: Sequence[int], *, phase: str, number: int
    ) -> RoundReply:
        """Nobody trains here."""
        raise SilentError("nobody trains while clients count")

    def ask(
        self,
        client: int,
        task: Callable[[ClientSide], ReplyT],
        *,
        global_state: State,
        number: int = 0,
    ) -> tuple[ReplyT, Cost]:
        """Return the answer that came."""
        if client not in self.answers.replies:
            raise SilentError(f"client {client} did not answer")
        return cast("ReplyT", self.answers.replies[client]), Cost()
