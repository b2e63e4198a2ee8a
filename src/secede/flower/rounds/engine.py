"""Rounds in the open on a live Flower federation, behind the same methods as the simulator's.

A round goes out as ordinary `train` messages, so that the user's own function trains.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from flwr.app import Message
from flwr.serverapp.strategy import FedAvg

from secede import state as states
from secede.errors import ConfigError, GuardError, SilentError
from secede.federation.cost import Cost
from secede.federation.engine import ClientSide, ReplyT, RoundReply, Update
from secede.flower.protocol import arrays, messages
from secede.flower.protocol.nodes import Node
from secede.flower.rounds import supported_strategies
from secede.flower.rounds.grid import DeadlineGrid, SubsetGrid
from secede.flower.rounds.recording import config_from_json
from secede.flower.rounds.task_requests import RecordedUpdate, TaskReplies, TaskRequest, TaskSender
from secede.flower.rounds.transport import Transport
from secede.flower.storage.round_log import Contribution
from secede.state import State
from secede.unlearning import client_tasks
from secede.unlearning.client_tasks import Task
from secede.waiting import seconds_left

logger = logging.getLogger(__name__)

_PAUSES = (1, 10, 100, 600)  # before a client that broke off is asked again, in pauses of a look

OnRound = Callable[[str, Sequence[Contribution], Sequence[Update]], None]


@dataclass(frozen=True, kw_only=True)
class RoundResult:
    """What came of a round: updates, their digests by client, and why others sent none, by node."""

    updates: Sequence[Update] = ()
    digests: Mapping[int, str] = field(default_factory=dict)
    faults: Mapping[int, str] = field(default_factory=dict)
    up: int = 0  # bytes
    down: int = 0


@dataclass(frozen=True, kw_only=True)
class LiveEngine(ABC):
    """An engine over the nodes of a grid; `clients` gives each its number."""

    exchange: Transport
    clients: Mapping[int, Node]
    like: State  # names, shapes and dtypes of every state
    home: str = ""  # what the server calls itself to clients
    config: Mapping[str, object] = field(default_factory=dict)  # for the user's own training
    own: dict[int, RecordedUpdate] = field(default_factory=dict)
    remembers: bool = True  # False: rounds leave `own` as it is
    hidden: frozenset[int] = frozenset()  # clients that take part in no round
    answer_seconds: Mapping[int, float] = field(default_factory=dict)
    round_seconds: float = 3600.0  # for a round, and for an answer where nothing else is said
    gather_seconds: float = 120.0  # for clients that are offline when a round begins
    first_round: int = 0  # rounds before: users' functions see the numbers go on
    passes: int = 1  # over its samples that a client makes in a round
    heaviest: Mapping[int, float] = field(default_factory=dict)  # weight that passes as honest
    enough: Callable[[Sequence[str]], None] = lambda _names: None  # raises, before a sum is opened
    note: OnRound = lambda _start, _clients, _updates: None
    phases: dict[int, str] = field(default_factory=dict)

    def train_round(
        self, state: State, clients: Sequence[int], *, phase: str, number: int
    ) -> RoundReply:
        """Let `clients` train from `state`; whoever sends no sound update is left out and named."""
        started = time.monotonic()
        wanted = [self._known(client) for client in clients]
        if leavers := self.hidden & set(clients):
            raise ConfigError(f"{self._known(min(leavers)).name!r} leaves and trains no more")
        there = self.exchange.gather(wanted, self.gather_seconds)
        at = {
            there[node.name].node: n
            for n, node in zip(clients, wanted, strict=True)
            if node.name in there
        }
        names = {node: self.clients[client].name for node, client in at.items()}
        came = (
            self._exchanged(state, at, names, phase=phase, number=number) if at else RoundResult()
        )
        self._tell_missing(wanted, names, came)
        updates = sorted(came.updates, key=lambda update: clients.index(update.client))
        if not updates:
            raise SilentError("no client sent an update: see that they run, then start this again")
        self._remember(states.digest(state), updates, came.digests, phase)
        cost = Cost(
            rounds=1,
            upload_bytes=came.up,
            download_bytes=came.down,
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
        """Let `client` do a task that can travel; SilentError if it does not answer in time.

        One that goes away while it works is asked again when it is back, as long as time is left;
        one whose app breaks off, for want of memory say, some times with longer and longer pauses.
        """
        form, node = client_tasks.to_message(task), self._known(client)
        seconds = self.answer_seconds.get(client, self.round_seconds)
        cost, crash, pauses = Cost(), None, list(_PAUSES)
        for left in seconds_left(seconds, self.exchange.pause):
            if left <= 0:
                break
            question = TaskRequest(cast("Task", task), form, global_state, number)
            found = self._questions.ask([client], question, seconds=left, gather=left)
            cost += found.cost
            if client in found.replies:
                return cast("ReplyT", found.replies[client]), cost
            if client in found.failures:
                crash = found.failures[client]
                if client not in found.crashed or not pauses:
                    raise crash
                time.sleep(max(0.0, min(pauses.pop(0) * self.exchange.pause, left)))
        how = "did not answer" if cost.download_bytes else "was not online"
        raise crash or SilentError(f"client {node.name!r} {how} within {seconds:g} seconds")

    def ask_all(
        self, clients: Sequence[int], task: Task, *, global_state: State, number: int = 0
    ) -> TaskReplies:
        """Ask several clients at once; those that do not answer are left out and named."""
        question = TaskRequest(task, client_tasks.to_message(task), global_state, number)
        found = self._questions.ask(
            clients, question, seconds=self.round_seconds, gather=self.gather_seconds
        )
        for failure in found.failures.values():
            logger.info(f"left out: {failure}")
        if silent := [n for n in clients if n not in found.replies and n not in found.failures]:
            names = ", ".join(self._known(client).name for client in silent)
            logger.info(f"left out, no answer came: {names}")
        return found

    @property
    def _questions(self) -> TaskSender:
        return TaskSender(
            exchange=self.exchange,
            clients=self.clients,
            own=self.own,
            like=self.like,
            home=self.home,
        )

    @abstractmethod
    def _exchanged(
        self,
        state: State,
        at: Mapping[int, int],
        names: Mapping[int, str],
        *,
        phase: str,
        number: int,
    ) -> RoundResult:
        """Let the clients `at` some nodes train, and return what came."""

    def _remember(
        self, start: str, updates: Sequence[Update], digests: Mapping[int, str], phase: str
    ) -> None:
        nodes = self.clients
        contributions = [
            Contribution(
                client=nodes[u.client].name,
                node=str(nodes[u.client].node),
                key=nodes[u.client].key,
                weight=u.samples,
                digest=digests.get(u.client),
            )
            for u in updates
        ]
        self.note(start, contributions, updates)
        if not self.remembers:
            return
        for client, own in self.own.items():
            if self.phases.get(client) == phase:
                self.own[client] = RecordedUpdate(0.0, own.digest)
        total = sum(update.samples for update in updates)
        for update, told in zip(updates, contributions, strict=True):
            self.own[update.client] = RecordedUpdate(update.samples / total, told.digest)
            self.phases[update.client] = phase

    def _tell_missing(
        self, wanted: Sequence[Node], names: Mapping[int, str], came: RoundResult
    ) -> None:
        said = {names[node]: reason for node, reason in came.faults.items()}
        there = {self.clients[update.client].name for update in came.updates}
        for node in wanted:
            if node.name not in there:
                why = said.get(node.name, "no update came in time")
                logger.info(f"left out of the round: client {node.name!r}: {why}")

    def _known(self, client: int) -> Node:
        if client not in self.clients:
            raise ConfigError(f"unknown client {client}: there are {sorted(self.clients)}")
        return self.clients[client]


@dataclass(frozen=True, kw_only=True)
class FlowerEngine(LiveEngine):
    """An engine over the nodes of a grid; `clients` gives each its number."""

    strategy: FedAvg

    def _exchanged(
        self,
        state: State,
        at: Mapping[int, int],
        names: Mapping[int, str],
        *,
        phase: str,
        number: int,
    ) -> RoundResult:
        # The strategy's own sampling would wait for ever if all of them went away by now.
        grid = DeadlineGrid(SubsetGrid(self.exchange.grid, at), self.gather_seconds)
        # In the model's order, as while training: clients and mods may go by place.
        record = arrays.to_record({name: state[name] for name in self.like})
        config = config_from_json(self.config)
        made = supported_strategies.train_messages(
            self.strategy, record, config, grid, self.first_round + number
        )
        for message in made:
            serving = self.own.get(at[message.metadata.dst_node_id])
            message.metadata.group_id = messages.round_group(phase, number)
            messages.add_home(message, self.home, serving.digest if serving else None)
            message.metadata.ttl = self.round_seconds
        replies = self.exchange.send(made, names, self.round_seconds)
        updates, faults = list[Update](), {**replies.failed, **replies.lost}
        for node, reply in replies.sound.items():
            try:
                updates.append(self._update(at[node], reply))
            except GuardError as error:
                faults[node] = str(error)
        return RoundResult(
            updates=updates,
            digests={update.client: update.digest for update in updates},
            faults=faults,
            up=sum(arrays.size_bytes(reply) for reply in replies.sound.values()),
            down=sum(arrays.size_bytes(message) for message in made),
        )

    def _update(self, client: int, message: Message) -> Update:
        state = supported_strategies.state_of(message, self.like)
        weight = supported_strategies.weight_of(message, self.strategy)
        if weight > self.heaviest.get(client, weight):
            raise GuardError(f"its weight {weight:g} is far beyond what was recorded of it")
        if state is None or not weight or weight != int(weight):
            raise GuardError(
                f"no update with one record of arrays and a whole {self.strategy.weighted_by_key!r}"
            )
        return Update(client, state, int(weight))
