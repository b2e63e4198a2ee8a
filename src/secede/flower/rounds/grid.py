"""Grids that hide nodes or bound waits, and a transport whose every wait has a timeout.

Any strategy works on these grids unchanged.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from secede.errors import ConfigError, SilentError
from secede.flower._flwr import NodeInfo, Run, is_network, is_simulation, pull_checked
from secede.flower.protocol import nodes
from secede.flower.protocol.nodes import Node, Roster
from secede.text import list_first, printable
from secede.waiting import LogAtIntervals, seconds_left

logger = logging.getLogger(__name__)

_PAUSE = 0.5  # seconds between two polls


class BaseGrid(Grid):
    """What all grids of ours share."""

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Create a message."""
        return Message(content, dst_node_id, message_type, group_id=group_id, ttl=ttl)

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of the nodes that are not hidden."""
        return [int(node.node_id) for node in self.get_nodes()]


class ForwardingGrid(BaseGrid):
    """A grid that forwards everything to another grid."""

    def __init__(self, inner: Grid) -> None:
        self.inner = inner

    def set_run(self, run: Run) -> None:
        """Set the run."""
        self.inner.set_run(run)

    @property
    def run(self) -> Run:
        """The run."""
        return self.inner.run

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return the nodes that are not hidden."""
        return self.inner.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages."""
        return self.inner.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that have come."""
        return self.inner.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and wait for the replies."""
        return self.inner.send_and_receive(messages, timeout=timeout)


class NetworkGrid(ForwardingGrid):
    """A grid over the network whose replies are checked for their senders.

    It polls for replies twice a second, where Flower's own polls every three.
    """

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that have come."""
        return pull_checked(self.inner, _base(self.inner), message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and wait for the replies."""
        return poll(self, messages, math.inf if timeout is None else timeout, _PAUSE)


def poll(grid: Grid, messages: Iterable[Message], timeout: float, pause: float) -> list[Message]:
    """Send messages, and look for their replies until all have come or the time is over."""
    pending, replies = set(grid.push_messages(messages)), list[Message]()
    for _ in seconds_left(timeout, pause):
        received = list(grid.pull_messages(pending))
        pending -= {reply.metadata.reply_to_message_id for reply in received}
        replies += received
        if not pending:
            break
    return replies


class PartitionGrid(ForwardingGrid):
    """A grid of a simulation, whose clients are named by their partitions, as their folders are.

    Flower draws their ids and keys anew in each run, and makes them in the order of partitions.
    """

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return the nodes with a name for each that has none."""
        found = sorted(self.inner.get_nodes(), key=lambda node: str(node.registered_at))
        ordered = len({node.registered_at for node in found}) == len(found)
        for partition, node in enumerate(found):
            node.public_key = b""
            if ordered and not node.name:
                node.name = f"partition-{partition}"
        return found


def prepared(grid: Grid) -> Grid:
    """Return what stands in front of Flower's own grid: over the network, or of a simulation."""
    if is_simulation(_base(grid)):
        return PartitionGrid(grid)
    return NetworkGrid(grid) if is_network(_base(grid)) else grid


def _base(grid: Grid) -> Grid:
    """Return Flower's own grid, behind those of ours and of apps that made theirs of ours."""
    while isinstance(grid, ForwardingGrid):
        grid = grid.inner
    return grid


class AdmissionGrid(ForwardingGrid):
    """A grid that hides every node that may not take part, and sends no message to it.

    Nodes are checked each time that a strategy asks for them, so also while it waits.
    """

    def __init__(
        self, inner: Grid, roster: Roster, on_refusal: Callable[[Node, str], None] = lambda *_: None
    ) -> None:
        super().__init__(inner)
        self._roster, self._on_refusal = roster, on_refusal
        self.admitted = dict[int, Node]()  # under the names that their clients are recorded by
        self._refused = dict[str, str]()  # reasons by name, of nodes that are online

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return the online nodes that may take part; ConfigError if two share a name."""
        online: dict[int, NodeInfo] = {}
        for info in self.inner.get_nodes():
            node = nodes.node_of(info)
            if reason := self._roster.refusal(node):
                self._refused[node.name] = reason
                self._on_refusal(node, reason)
            else:
                self.admitted[node.node], online[node.node] = self._roster.named(node), info
        nodes.check_names(self.admitted[node] for node in online)
        return list(online.values())

    def why_too_few(self, online: Iterable[NodeInfo], enough: int) -> str | None:
        """Return why there can never be `enough` nodes; None if more may still come."""
        coming = self._roster.max_participants(self.admitted[int(info.node_id)] for info in online)
        out = sorted(self._roster.erased | self._refused.keys())
        if not out or coming >= enough:
            return None
        return (
            f"the strategy waits for {enough} clients, of the known ones {coming} may take part: "
            f"{list_first(out, 8)} {'was' if len(out) == 1 else 'were'} erased or refused; start "
            "new ones first, or lower its min_available_nodes, min_train_nodes and "
            "min_evaluate_nodes"
        )

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages; ConfigError if one is for a hidden node."""
        return self.inner.push_messages(self._checked(messages))

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and wait for the replies; ConfigError if one is for a hidden node."""
        return self.inner.send_and_receive(self._checked(messages), timeout=timeout)

    def _checked(self, messages: Iterable[Message]) -> list[Message]:
        checked = list(messages)
        for message in checked:
            if message.metadata.dst_node_id not in self.admitted:
                raise ConfigError(
                    f"the strategy sends to node {message.metadata.dst_node_id}, which may not "
                    "take part: choose among grid.get_node_ids()"
                )
        return checked


class SubsetGrid(ForwardingGrid):
    """A grid that hides all nodes but some."""

    def __init__(self, inner: Grid, nodes: Collection[int]) -> None:
        super().__init__(inner)
        self.nodes = frozenset(nodes)

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return those of the nodes that are online."""
        return [node for node in self.inner.get_nodes() if node.node_id in self.nodes]


class DeadlineGrid(ForwardingGrid):
    """A grid that bounds the wait for nodes: Flower's own sampling waits for ever.

    It waits for `enough` nodes itself and logs that at growing intervals, where Flower's sampling
    would log it each second. `why_too_few` says why there can never be enough.
    """

    def __init__(
        self,
        inner: Grid,
        timeout: float,
        *,
        enough: int = 1,
        why_too_few: Callable[[list[NodeInfo], int], str | None] = lambda _online, _enough: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(inner)
        self._clock, self._pause = clock, min(1.0, timeout / 10)
        self._end, self._timeout = clock() + timeout, timeout
        self._enough, self._why_too_few = enough, why_too_few
        self._log_wait = LogAtIntervals(logger.info, clock=clock)
        self._first_return: float | None = None  # when enough were online for the first time

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return the online nodes once they are enough; SilentError when the time is over."""
        while True:
            online, now = list(self.inner.get_nodes()), self._clock()
            left = self._end - now
            lacking = len(online) < self._enough
            if lacking and (why := self._why_too_few(online, self._enough)):
                raise SilentError(why)
            if left < 0:
                raise SilentError(
                    f"too few clients came within {self._timeout:g} seconds: {len(online)} are "
                    "online; start the others, or lower the strategy's min_available_nodes"
                )
            wanted = f" of {self._enough}" if lacking else ""
            # A strategy that has enough nodes asks no more; one that asks again later waits.
            if lacking or (self._first_return is not None and now - self._first_return > 1):
                self._log_wait(
                    f"waiting for more clients, {len(online)}{wanted} are online: {left:.0f} "
                    "seconds left"
                )
            if not lacking:
                self._first_return = now if self._first_return is None else self._first_return
                return online
            time.sleep(min(self._pause, left))


@dataclass(frozen=True, kw_only=True)
class Replies:
    """Replies by node, and the errors of nodes that sent none. Any other node was silent."""

    received: Mapping[int, Message] = field(default_factory=dict)
    failed: Mapping[int, str] = field(default_factory=dict)  # the client's error
    lost: Mapping[int, str] = field(default_factory=dict)  # the SuperLink's: the node went away


@dataclass(frozen=True, kw_only=True)
class Transport:
    """A grid on which every wait has a timeout."""

    grid: Grid
    pause: float = 1.0  # seconds between two polls
    now: Callable[[], datetime] = lambda: datetime.now(UTC)

    def wait_for_nodes(self, wanted: Sequence[Node], timeout: float) -> dict[str, Node]:
        """Return which of `wanted` are online, by name, once all are or the time is over."""
        log_wait = LogAtIntervals(logger.info)
        for left in seconds_left(timeout, self.pause):
            online = nodes.online_nodes(self.grid)
            present = {w.name: n for w in wanted for n in online if n.same(w)}
            missing = [node.name for node in wanted if node.name not in present]
            if not missing or left <= 0:
                break
            log_wait(f"{self._wait(missing, left)} to come online")
        return present

    def send(
        self, messages: Sequence[Message], names: Mapping[int, str], timeout: float
    ) -> Replies:
        """Send messages to different nodes and return the replies that come in time."""
        if not messages:
            return Replies()
        pending = dict[str, Message]()
        ids = list(self.grid.push_messages(messages))
        for message_id, message in zip(ids, messages, strict=False):
            if message_id:
                pending[message_id] = message
        received, failed, lost = dict[int, Message](), dict[int, str](), dict[int, str]()
        log_wait = LogAtIntervals(logger.info)
        for left in seconds_left(timeout, self.pause):
            for reply in self.grid.pull_messages(list(pending)):
                message_id = reply.metadata.reply_to_message_id
                if message_id not in pending:
                    continue
                message = pending.pop(message_id)
                node = message.metadata.dst_node_id
                if not reply.has_error():
                    if fault := _mismatch(reply, message):
                        failed[node] = fault
                    else:
                        received[node] = reply
                elif reply.metadata.src_node_id == node:
                    failed[node] = reply_error(reply)
                else:  # the SuperLink answers for a node that went away
                    lost[node] = reply_error(reply)
            if not pending or left <= 0:
                break
            awaited = [names[message.metadata.dst_node_id] for message in pending.values()]
            log_wait(self._wait(awaited, left))
        return Replies(received=received, failed=failed, lost=lost)

    def _wait(self, names: Sequence[str], left: float) -> str:
        end = self.now() + timedelta(seconds=left)
        return f"waiting for {list_first(names, 8)} until {end:%H:%M:%S} UTC"


def _mismatch(reply: Message, message: Message) -> str | None:
    """Return why a reply does not belong to the message; None if it does."""
    if reply.metadata.src_node_id != message.metadata.dst_node_id:
        return f"the reply came from node {reply.metadata.src_node_id}"
    if reply.metadata.message_type != message.metadata.message_type:
        return f"the reply is of type {reply.metadata.message_type[:40]!r}"
    return None


def reply_error(reply: Message) -> str:
    """Return the last line of an error, which names the exception, in printable characters."""
    lines = [line.strip() for line in str(reply.error.reason or "").splitlines() if line.strip()]
    text = lines[-1] if lines else f"error {reply.error.code}"
    return printable(text[:300])
