"""Grids that show less, or wait less: any strategy works on them unchanged."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Iterable

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from secede.errors import ConfigError, SilentError
from secede.flower._flwr import NodeInfo, Run, polls_slowly
from secede.flower.protocol import nodes
from secede.flower.protocol.nodes import Node, Roster
from secede.text import list_first
from secede.waiting import LogAtIntervals, seconds_left

logger = logging.getLogger(__name__)

_LOOK = 0.5  # seconds


class ForwardingGrid(Grid):
    """A grid that passes everything on to another."""

    def __init__(self, inner: Grid) -> None:
        self.inner = inner

    def set_run(self, run: Run) -> None:
        """Set the run."""
        self.inner.set_run(run)

    @property
    def run(self) -> Run:
        """The run."""
        return self.inner.run

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
        """Return the ids of the nodes that are shown."""
        return [int(node.node_id) for node in self.get_nodes()]

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return the nodes that are shown."""
        return self.inner.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages."""
        return self.inner.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Take the replies that are there."""
        return self.inner.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and wait for the replies."""
        return self.inner.send_and_receive(messages, timeout=timeout)


class FastPollGrid(ForwardingGrid):
    """A grid that is asked for replies twice a second: Flower's own looks every three seconds."""

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and wait for the replies."""
        pending, found = set(self.inner.push_messages(messages)), list[Message]()
        for _ in seconds_left(math.inf if timeout is None else timeout, _LOOK):
            came = list(self.inner.pull_messages(pending))
            pending -= {reply.metadata.reply_to_message_id for reply in came}
            found += came
            if not pending:
                break
        return found


def with_fast_polls(grid: Grid) -> Grid:
    """Return a grid that loses no time between replies, where Flower's own over the network does.

    Others, such as the simulation's, know themselves when a reply is there.
    """
    return FastPollGrid(grid) if polls_slowly(grid) else grid


class AdmissionGrid(ForwardingGrid):
    """A grid on which only those are there who may take part: the others get no message either.

    Who comes online while a strategy waits is looked at as well: each time that it asks.
    """

    def __init__(
        self, inner: Grid, roster: Roster, refused: Callable[[Node, str], None] = lambda *_: None
    ) -> None:
        super().__init__(inner)
        self._roster, self._refused = roster, refused  # the latter is told whom, and why
        self.seen = dict[int, Node]()  # who was shown, under the names that they are recorded by
        self._out = dict[str, str]()  # who is online and stays out, and why

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return those who are there and may take part; two with one name are refused."""
        shown: dict[int, NodeInfo] = {}
        for info in self.inner.get_nodes():
            node = nodes.node_of(info)
            if reason := self._roster.refusal(node):
                self._out[node.name] = reason
                self._refused(node, reason)
            else:
                self.seen[node.node], shown[node.node] = self._roster.named(node), info
        nodes.check_names(self.seen[node] for node in shown)
        return list(shown.values())

    def hopeless(self, there: Iterable[NodeInfo], enough: int) -> str | None:
        """Return why fewer than `enough` can ever be there; None if they may still come."""
        coming = self._roster.coming(self.seen[int(info.node_id)] for info in there)
        out = sorted(self._roster.erased | self._out.keys())
        if not out or coming >= enough:
            return None
        return (
            f"the strategy waits for {enough} clients, of the known ones {coming} may take part: "
            f"{list_first(out, 8)} {'was' if len(out) == 1 else 'were'} erased or refused; start "
            "new ones first, or lower its min_available_nodes, min_train_nodes and "
            "min_evaluate_nodes"
        )

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages to them."""
        return self.inner.push_messages(self._checked(messages))

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages to them and wait for the replies."""
        return self.inner.send_and_receive(self._checked(messages), timeout=timeout)

    def _checked(self, messages: Iterable[Message]) -> list[Message]:
        found = list(messages)
        for message in found:
            if message.metadata.dst_node_id not in self.seen:
                raise ConfigError(
                    f"a message to node {message.metadata.dst_node_id}, which takes no part"
                )
        return found


class SubsetGrid(ForwardingGrid):
    """A grid on which none but some nodes are there."""

    def __init__(self, inner: Grid, shown: Collection[int]) -> None:
        super().__init__(inner)
        self.shown = frozenset(shown)

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return those."""
        return [node for node in self.inner.get_nodes() if node.node_id in self.shown]


class DeadlineGrid(ForwardingGrid):
    """A grid that is asked who is there for so long only: Flower's sampling asks for ever.

    It waits for `enough` clients itself, and says so rarely, where Flower's sampling would say so
    each second. `hopeless` tells, of those who are there, why so many can never be.
    """

    def __init__(
        self,
        inner: Grid,
        seconds: float,
        *,
        enough: int = 1,
        hopeless: Callable[[list[NodeInfo], int], str | None] = lambda _there, _enough: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(inner)
        self._clock, self._pause = clock, min(1.0, seconds / 10)
        self._until, self._seconds = clock() + seconds, seconds
        self._enough, self._hopeless = enough, hopeless
        self._say_so = LogAtIntervals(logger.info, clock=clock)
        self._returned: float | None = None  # when enough were there for the first time

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Return who is there; SilentError once the time is over."""
        while True:
            found, now = list(self.inner.get_nodes()), self._clock()
            left = self._until - now
            lacking = len(found) < self._enough
            if lacking and (why := self._hopeless(found, self._enough)):
                raise SilentError(why)
            if left < 0:
                raise SilentError(
                    f"too few clients came within {self._seconds:g} seconds: {len(found)} are "
                    "there; start the others, or lower the strategy's min_available_nodes"
                )
            wanted = f" of {self._enough}" if lacking else ""
            # Sampling that is content looks no more; who looks twice at once does not wait.
            if lacking or (self._returned is not None and now - self._returned > 1):
                self._say_so(
                    f"waiting for more clients, {len(found)}{wanted} are there: {left:.0f} "
                    "seconds left"
                )
            if not lacking:
                self._returned = now if self._returned is None else self._returned
                return found
            time.sleep(min(self._pause, left))
