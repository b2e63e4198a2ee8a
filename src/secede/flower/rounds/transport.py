"""Messages to nodes, and waits with a timeout for nodes and for their replies."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from flwr.app import Message
from flwr.serverapp import Grid

from secede.flower.protocol.nodes import Node, online_nodes
from secede.text import list_first, printable
from secede.waiting import LogAtIntervals, seconds_left

logger = logging.getLogger(__name__)


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
            online = online_nodes(self.grid)
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
