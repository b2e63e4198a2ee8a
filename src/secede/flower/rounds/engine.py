"""The engine of a live Flower federation: rounds of training, and tasks for single clients.

It has the methods of the simulator. A round is sent as ordinary `train` messages, so that the
user's own function trains.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp.strategy import FedAvg

from secede import state as states
from secede.errors import ConfigError, GuardError, RecordError, SecedeError, SilentError
from secede.federation.engine import ClientSide, Cost, ReplyT, RoundReply, Update
from secede.flower.protocol import arrays, messages
from secede.flower.protocol.nodes import Node
from secede.flower.rounds import supported_strategies
from secede.flower.rounds.grid import DeadlineGrid, SubsetGrid, Transport
from secede.flower.storage import Contribution, config_from_json
from secede.state import State
from secede.unlearning import LocalResult, Reply, Task, TaskMessage, client_tasks
from secede.waiting import seconds_left

logger = logging.getLogger(__name__)

_PAUSES = (1, 10, 100, 600)  # before a crashed client gets its task again, in polls

OnRound = Callable[[str, Sequence[Contribution], Sequence[Update]], None]


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

    def of(self, client: int) -> tuple[Reply, Cost]:
        """Return a client's counts or measures; their cost is in the sum of all."""
        reply = self.replies.get(client)
        if not isinstance(reply, Reply):
            raise SilentError(f"client {client} did not answer")
        return reply, Cost()


@dataclass(frozen=True, kw_only=True)
class RoundResult:
    """The updates of a round, their digests by client, and why nodes sent none."""

    updates: Sequence[Update] = ()
    digests: Mapping[int, str] = field(default_factory=dict)
    faults: Mapping[int, str] = field(default_factory=dict)
    upload_bytes: int = 0
    download_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class LiveEngine(ABC):
    """An engine over the nodes of a grid; `clients` gives each its number.

    Times are in seconds.
    """

    transport: Transport
    clients: Mapping[int, Node]
    template: State  # names, shapes and dtypes of every state
    home: str = ""  # identity of the server's home, for clients
    request: str = ""  # the request that tasks are for, as it was signed
    plan: str = ""  # that a local step is of
    config: Mapping[str, object] = field(default_factory=dict)  # for the user's own training
    own: dict[int, RecordedUpdate] = field(default_factory=dict)
    records_rounds: bool = True  # False: rounds leave `own` as it is
    excluded: frozenset[int] = frozenset()  # clients that take part in no round
    task_timeouts: Mapping[int, float] = field(default_factory=dict)  # by client
    round_timeout: float = 3600.0  # also of a task whose client has no timeout of its own
    online_timeout: float = 120.0  # for clients that are offline when a round begins
    first_round: int = 0  # rounds before, so that users' functions see the numbers go on
    # Number and config of each round of the training, before the strategy: retraining repeats them.
    repeated: Sequence[tuple[int, Mapping[str, object]]] = ()
    passes: int = 1  # over its samples that a client makes in a round
    max_weights: Mapping[int, float] = field(
        default_factory=dict
    )  # above them, updates are refused
    # Raises if too few clients are left; called before a sum of hidden updates is opened.
    check_quorum: Callable[[Sequence[str]], None] = lambda _names: None
    on_round: OnRound = lambda _start, _clients, _updates: None
    phases: dict[int, str] = field(default_factory=dict)

    def train_round(
        self, state: State, clients: Sequence[int], *, phase: str, number: int
    ) -> RoundReply:
        """Let `clients` train from `state`; a client without a valid update is left out and logged.

        SilentError if no client sends one.
        """
        started = time.monotonic()
        if leavers := self.excluded & set(clients):
            raise ConfigError(f"{self._node(min(leavers)).name!r} is being erased and cannot train")
        client_at = self._wait_for(clients, self.online_timeout)
        result = RoundResult()
        if client_at:
            result = self._run_round(state, client_at, phase=phase, number=number)
        self._log_missing(clients, client_at, result)
        updates = sorted(result.updates, key=lambda update: clients.index(update.client))
        if not updates:
            raise SilentError(
                "no client sent an update: check that the clients run, then start this again"
            )
        self._record(states.digest(state), updates, result.digests, phase)
        cost = Cost(
            rounds=1,
            upload_bytes=result.upload_bytes,
            download_bytes=result.download_bytes,
            gradient_samples=self.passes * sum(update.samples for update in updates),
            seconds=time.monotonic() - started,
        )
        return RoundReply(tuple(updates), cost)

    def ask(
        self,
        client: int,
        task: Callable[[ClientSide], ReplyT],
        *,
        global_state: State,
        number: int = 0,
    ) -> tuple[ReplyT, Cost]:
        """Send `client` a task and return its reply; SilentError if none comes in time.

        A client that goes away meanwhile gets the task again when it is back. One whose app
        crashes, perhaps for lack of memory, gets it up to four times more, after growing pauses.
        """
        form, node = client_tasks.to_message(task), self._node(client)
        timeout = self.task_timeouts.get(client, self.round_timeout)
        cost, crash, pauses = Cost(), None, list(_PAUSES)
        for left in seconds_left(timeout, self.transport.pause):
            if left <= 0:
                break
            request = TaskRequest(cast("Task", task), form, global_state, number)
            result = self._send([client], request, timeout=left, node_timeout=left)
            cost += result.cost
            if client in result.replies:
                return cast("ReplyT", result.replies[client]), cost
            if client in result.failures:
                crash = result.failures[client]
                if client not in result.crashed or not pauses:
                    raise crash
                time.sleep(max(0.0, min(pauses.pop(0) * self.transport.pause, left)))
        fault = "did not reply" if cost.download_bytes else "was not online"
        raise crash or SilentError(f"client {node.name!r} {fault} within {timeout:g} seconds")

    def ask_all(
        self, clients: Sequence[int], task: Task, *, global_state: State, number: int = 0
    ) -> TaskReplies:
        """Send a task to several clients at once; those without a reply are left out and logged."""
        request = TaskRequest(task, client_tasks.to_message(task), global_state, number)
        result = self._send(
            clients,
            request,
            timeout=self.round_timeout,
            node_timeout=self.online_timeout,
            consequence="left out: ",
        )
        if silent := [n for n in clients if n not in result.replies and n not in result.failures]:
            names = ", ".join(self.clients[client].name for client in silent)
            logger.warning(f"left out, no reply came: {names}")
        return result

    def _send(
        self,
        clients: Sequence[int],
        request: TaskRequest,
        *,
        timeout: float,
        node_timeout: float,
        consequence: str = "",
    ) -> TaskReplies:
        """Send a task to the clients that are online within `node_timeout`; end after `timeout`.

        `consequence` begins the log line of each failure.
        """
        started = time.monotonic()
        client_at = self._wait_for(clients, node_timeout)
        left = max(timeout - (time.monotonic() - started), self.transport.pause)
        sent = [self._message(node, client, request, left) for node, client in client_at.items()]
        names = self._names(client_at)
        answers = self.transport.send(sent, names, left)
        replies, failures = dict[int, LocalResult | Reply](), dict[int, SecedeError]()
        for node, message in answers.received.items():
            try:
                found = messages.read_reply(message, request.task, self.template, names[node])
                replies[client_at[node]] = found
            except SecedeError as error:
                logger.warning(f"{consequence}{error}")
                failures[client_at[node]] = _without_words(error, names[node])
        for node, reason in answers.failed.items():
            logger.warning(f"{consequence}client {names[node]!r} failed: {reason}")
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
            request=self.request,
        )
        plan = self.plan if form.name == client_tasks.LOCAL_STEP else ""
        return messages.task_message(node, asked, request.state, plan=plan, ttl=ttl)

    def _given(self, number: int) -> tuple[int, Mapping[str, object]]:
        """Return the number and the config that the strategy is given for a round."""
        if 0 < number <= len(self.repeated):
            return self.repeated[number - 1]
        return self.first_round + number, self.config

    @abstractmethod
    def _run_round(
        self, state: State, client_at: Mapping[int, int], *, phase: str, number: int
    ) -> RoundResult:
        """Let the clients at some nodes train, and return their updates."""

    def _record(
        self, start: str, updates: Sequence[Update], digests: Mapping[int, str], phase: str
    ) -> None:
        contributions = [
            Contribution.of(self.clients[u.client], u.samples, digests.get(u.client))
            for u in updates
        ]
        self.on_round(start, contributions, updates)
        if not self.records_rounds:
            return
        for client, own in self.own.items():
            if self.phases.get(client) == phase:
                self.own[client] = RecordedUpdate(0.0, own.digest)
        total = sum(update.samples for update in updates)
        for update, contribution in zip(updates, contributions, strict=True):
            self.own[update.client] = RecordedUpdate(update.samples / total, contribution.digest)
            self.phases[update.client] = phase

    def _log_missing(
        self, clients: Sequence[int], client_at: Mapping[int, int], result: RoundResult
    ) -> None:
        faults = {client_at[node]: reason for node, reason in result.faults.items()}
        present = {update.client for update in result.updates}
        for client in clients:
            if client not in present:
                name = self.clients[client].name
                reason = faults.get(client, "no update came in time")
                logger.warning(f"left out of the round: client {name!r}: {reason}")

    def _wait_for(self, clients: Sequence[int], timeout: float) -> dict[int, int]:
        """Return, by node, the clients that are online once all are or the time is over."""
        wanted = [self._node(client) for client in clients]
        online = self.transport.wait_for_nodes(wanted, timeout)
        return {
            online[node.name].node: client
            for client, node in zip(clients, wanted, strict=True)
            if node.name in online
        }

    def _names(self, client_at: Mapping[int, int]) -> dict[int, str]:
        return {node: self.clients[client].name for node, client in client_at.items()}

    def _node(self, client: int) -> Node:
        if client not in self.clients:
            raise ConfigError(f"unknown client {client}: there are {sorted(self.clients)}")
        return self.clients[client]


@dataclass(frozen=True, kw_only=True)
class FlowerEngine(LiveEngine):
    """An engine whose rounds are in the open: the server sees each update."""

    strategy: FedAvg

    def _run_round(
        self, state: State, client_at: Mapping[int, int], *, phase: str, number: int
    ) -> RoundResult:
        # The strategy's own sampling would wait for ever if all nodes went away meanwhile.
        grid = DeadlineGrid(SubsetGrid(self.transport.grid, client_at), self.online_timeout)
        # In the model's order, as in training: clients and mods may rely on it.
        record = ArrayRecord({name: state[name] for name in self.template})
        server_round, given = self._given(number)
        config = ConfigRecord(config_from_json(given))
        sent = supported_strategies.train_messages(
            self.strategy, record, config, grid, server_round
        )
        for message in sent:
            client = client_at[message.metadata.dst_node_id]
            serving = self.own.get(client)
            message.metadata.group_id = messages.round_group(phase, number)
            messages.add_home(message, self.home, serving.digest if serving else None)
            messages.add_client(message, self.clients[client].name)
            message.metadata.ttl = self.round_timeout
        replies = self.transport.send(sent, self._names(client_at), self.round_timeout)
        updates, faults = list[Update](), {**replies.failed, **replies.lost}
        for node, reply in replies.received.items():
            try:
                updates.append(self._update(client_at[node], reply))
            except GuardError as error:
                faults[node] = str(error)
        return RoundResult(
            updates=updates,
            digests={update.client: update.digest for update in updates},
            faults=faults,
            upload_bytes=sum(arrays.size_bytes(reply) for reply in replies.received.values()),
            download_bytes=sum(arrays.size_bytes(message) for message in sent),
        )

    def _update(self, client: int, message: Message) -> Update:
        state, weight = supported_strategies.update_of(message, self.strategy, self.template)
        if weight > self.max_weights.get(client, weight):
            raise GuardError(f"its weight {weight:g} is far above its recorded weight")
        return Update(client, state, int(weight))


def _without_words(error: SecedeError, who: str) -> SecedeError:
    """Return an error of the same kind without the client's own words, fit for the journal."""
    kind = type(error)
    return kind(f"client {who!r}: {kind.__name__}; its own words were logged and are not kept")
