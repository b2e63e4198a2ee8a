"""A grid in one process: real ClientApps and strategies, messages serialised as on a wire.

Nodes can be offline, late, or answer something else. Time is not slept away: a node that does not
answer leaves its message unanswered, and whoever waits does so by its own short clock.
"""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from harness.flower.repeatable import CLOCK
from secede.flower._flwr import (
    SERVER_NODE,
    NodeInfo,
    act_as_server,
    answer_as_server,
    message_from_bytes,
    message_to_bytes,
    set_message_id,
)
from secede.flower.protocol.arrays import size_bytes

Answer = Callable[[Message, Message], Message | None]  # question and honest reply → what is sent


@dataclass
class Site:
    """A SuperNode: its identity, its config, the state of this run, and how it behaves."""

    name: str
    node: int
    config: dict[str, Any]
    key: bytes = b""
    app: ClientApp | None = None
    online: bool = True
    late: int = 0  # pulls before its answer is there
    silent: bool = False
    vanishes: bool = False  # takes the message and is gone: the SuperLink answers for it
    answer: Answer | None = None
    seen: list[str] = field(default_factory=list)  # types of the messages that came
    state: RecordDict = field(default_factory=RecordDict)


class InProcess(Grid):
    """A grid over sites that all live here."""

    def __init__(
        self, sites: Sequence[Site], app: ClientApp | None = None, *, run: int = 7
    ) -> None:
        self.sites = {site.node: site for site in sites}
        self.app, self.run_id = app, run
        act_as_server(run)
        self.bytes_down = self.bytes_up = 0
        self.before: Callable[[Message], None] = lambda _: None  # called for each message
        self._numbers = itertools.count(1)
        self._waiting: dict[str, tuple[int, Message]] = {}

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        return SimpleNamespace(run_id=self.run_id)

    def create_message(self, *_: Any, **__: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return [site.node for site in self.sites.values() if site.online]

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [
            NodeInfo(node_id=site.node, name=site.name, public_key=site.key)
            for site in self.sites.values()
            if site.online
        ]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        identities = []
        for message in messages:
            identity = f"message-{next(self._numbers)}"
            set_message_id(message, identity)
            message.metadata.__dict__["_run_id"] = self.run_id
            message.metadata.__dict__["_src_node_id"] = SERVER_NODE
            with CLOCK.standing_still():
                self._deliver(identity, wired(message))
            identities.append(identity)
        return identities

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        found = []
        for identity in list(message_ids):
            if identity not in self._waiting:
                continue
            late, reply = self._waiting[identity]
            if late > 0:
                self._waiting[identity] = (late - 1, reply)
            else:
                found.append(reply)
                del self._waiting[identity]
        return found

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        identities = list(self.push_messages(messages))
        return [reply for _ in range(3) for reply in self.pull_messages(identities)]

    def _deliver(self, identity: str, message: Message) -> None:
        site = self.sites[message.metadata.dst_node_id]
        self.before(message)
        site.seen.append(message.metadata.message_type)
        self.bytes_down += size_bytes(message)
        if site.vanishes or not site.online:
            reply = Message(Error(5, "Node Unavailable"), reply_to=message)
            answer_as_server(reply)
            self._waiting[identity] = (site.late, wired(reply))
            return
        found: Message | None = self._call(site, message)
        if site.answer is not None and found is not None and found.has_content():
            found = site.answer(message, found)
        if found is None or site.silent:
            return
        set_message_id(found, f"reply-to-{identity}")
        sent = wired(found)
        if sent.has_content():
            self.bytes_up += size_bytes(sent)
        self._waiting[identity] = (site.late, sent)

    def _call(self, site: Site, message: Message) -> Message:
        context = Context(self.run_id, site.node, dict(site.config), site.state, {})
        app = site.app or self.app
        assert app is not None
        try:
            return app(message, context)
        except Exception as error:
            reason = "".join(traceback.format_exception(error))
            return Message(Error(2, reason), reply_to=message)


def wired(message: Message) -> Message:
    """Return what arrives of a message on the other side: nothing is shared with the sender."""
    return message_from_bytes(message_to_bytes(message))


def sites(
    count: int, folder: Path, *, names: str = "site-{}", keys: bool = True, **config: Any
) -> list[Site]:
    """Return sites with names and keys, each with a folder of its own."""
    return [
        Site(
            name=names.format(n),
            node=9_000_000_000_000_000_000 + n,
            config={
                "partition-id": n,
                "num-partitions": count,
                "secede-folder": str(folder / f"disk-{n}"),
                **config,
            },
            key=f"public key {n}".encode() if keys else b"",
        )
        for n in range(count)
    ]
