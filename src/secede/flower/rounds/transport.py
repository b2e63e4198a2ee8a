"""Messages to nodes, and a wait for their replies that ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from flwr.app import Message
from flwr.serverapp import Grid

from secede.flower.protocol.nodes import Node, online_nodes
from secede.flower.rounds.grid import logger
from secede.text import list_first, printable
from secede.waiting import LogAtIntervals, seconds_left


@dataclass(frozen=True, kw_only=True)
class Replies:
    """What came back, by node: replies, what failed and why; the rest were silent."""

    sound: Mapping[int, Message] = field(default_factory=dict)
    failed: Mapping[int, str] = field(default_factory=dict)  # at the client
    lost: Mapping[int, str] = field(default_factory=dict)  # on the way: the node went away


@dataclass(frozen=True, kw_only=True)
class Transport:
    """A grid with bounded waits."""

    grid: Grid
    pause: float = 1.0  # seconds between two looks
    now: Callable[[], datetime] = lambda: datetime.now(UTC)

    def gather(self, wanted: Sequence[Node], seconds: float) -> dict[str, Node]:
        """Return which of `wanted` are there, by name, waiting for the others for so long."""
        say_so = LogAtIntervals(logger.info)
        for left in seconds_left(seconds, self.pause):
            there = online_nodes(self.grid)
            found = {w.name: n for w in wanted for n in there if n.same(w)}
            missing = [node.name for node in wanted if node.name not in found]
            if not missing or left <= 0:
                break
            say_so(f"{self._words(missing, left)} to come online")
        return found

    def send(
        self, messages: Sequence[Message], names: Mapping[int, str], seconds: float
    ) -> Replies:
        """Send messages to different nodes and wait for their replies, at most so long."""
        if not messages:
            return Replies()
        pending = dict[str, Message]()
        ids = list(self.grid.push_messages(messages))
        for identity, message in zip(ids, messages, strict=False):
            if identity:
                pending[identity] = message
        sound, failed, lost = dict[int, Message](), dict[int, str](), dict[int, str]()
        say_so = LogAtIntervals(logger.info)
        for left in seconds_left(seconds, self.pause):
            for reply in self.grid.pull_messages(list(pending)):
                asked = pending.pop(reply.metadata.reply_to_message_id, None)
                if asked is None:
                    continue
                node = asked.metadata.dst_node_id
                if not reply.has_error():
                    if fault := _fault(reply, asked):
                        failed[node] = fault
                    else:
                        sound[node] = reply
                elif reply.metadata.src_node_id == node:
                    failed[node] = reply_error(reply)
                else:  # the SuperLink answers for a node that went away
                    lost[node] = reply_error(reply)
            if not pending or left <= 0:
                break
            awaited = [names[asked.metadata.dst_node_id] for asked in pending.values()]
            say_so(self._words(awaited, left))
        return Replies(sound=sound, failed=failed, lost=lost)

    def _words(self, names: Sequence[str], left: float) -> str:
        end = self.now() + timedelta(seconds=left)
        return f"waiting for {list_first(names, 8)} until {end:%H:%M:%S} UTC"


def _fault(reply: Message, asked: Message) -> str | None:
    """Return why a reply is not the one that was asked for; None if it is."""
    if reply.metadata.src_node_id != asked.metadata.dst_node_id:
        return f"the reply came from node {reply.metadata.src_node_id}"
    if reply.metadata.message_type != asked.metadata.message_type:
        return f"the reply is of type {reply.metadata.message_type[:40]!r}"
    return None


def reply_error(reply: Message) -> str:
    """Return an error's last line, which names the exception, in printable characters."""
    lines = [line.strip() for line in str(reply.error.reason or "").splitlines() if line.strip()]
    text = lines[-1] if lines else f"error {reply.error.code}"
    return printable(text[:300])
