"""What a modified SuperNode can put into a reply: Flower reads its sender from the reply itself."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.common.serde import message_to_proto
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.superlink.grid.http_grid import HttpGrid

from secede.flower._flwr import act_as_server, set_message_id
from secede.flower.rounds.grid import ForwardingGrid, prepared

HOSTILE, OTHER = 5, 6


class SuperLink:
    """What a grid asks: it has checked who sent a reply, but not what the reply says of itself."""

    def __init__(self, sent: Message, change: Callable[[bytes], bytes] = bytes) -> None:
        objects = get_all_nested_objects(sent)
        self.tree = get_object_tree(sent)
        self.contents = {name: found.deflate() for name, found in objects.items()}
        self.id = sent.object_id
        self.contents[self.id] = change(self.contents[self.id])
        self.proto = message_to_proto(Message(Error(0, ""), reply_to=question(HOSTILE)))
        self.proto.metadata.message_id = self.id

    def PullMessages(self, _: Any) -> PullAppMessagesResponse:  # noqa: N802
        return PullAppMessagesResponse(messages_list=[self.proto], message_object_trees=[self.tree])

    def PullObject(self, request: Any) -> Any:  # noqa: N802
        content = self.contents[request.object_id]
        return SimpleNamespace(object_found=True, object_available=True, object_content=content)

    def ConfirmMessageReceived(self, _: Any) -> None:  # noqa: N802
        pass


def question(node: int) -> Message:
    act_as_server(7)
    message = Message(RecordDict(), node, "train", ttl=60)
    set_message_id(message, f"question-{node}")
    message.metadata.__dict__["_run_id"] = 7
    message.metadata.__dict__["_src_node_id"] = 1
    return message


def answer(node: int) -> Message:
    content = RecordDict({"c": ConfigRecord({"x": 1})})
    return Message(content, reply_to=question(node))


def pulled(link: SuperLink, wrap: Any = lambda grid: grid) -> Message:
    grid = HttpGrid(token="secret")
    grid._client, grid._run = link, SimpleNamespace(run_id=7)  # type: ignore[assignment]
    (found,) = prepared(wrap(grid)).pull_messages(["question-5"])
    return found


@pytest.mark.parametrize("wrap", [lambda grid: grid, ForwardingGrid])
def test_an_honest_reply_comes_as_it_was_sent(wrap: Any) -> None:
    found = pulled(SuperLink(answer(HOSTILE)), wrap)
    assert found.content == answer(HOSTILE).content
    assert found.metadata.src_node_id == HOSTILE


def test_a_reply_in_the_name_of_another_node_is_its_senders_error() -> None:
    found = pulled(SuperLink(answer(OTHER)))
    assert found.has_error()
    assert found.metadata.src_node_id == HOSTILE
    assert found.metadata.reply_to_message_id == "question-5"
    assert "another's name" in str(found.error.reason)


CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda data: data[:-5],
    "no body": lambda data: data[: data.index(b"\0") + 1],
    "another body": lambda data: data[: data.index(b"\0") + 1] + b"\xff" * 99,
    "another kind": lambda data: data.replace(b"Message", b"ArrayChunk"),
    "nothing": lambda _: b"",
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_reply_that_cannot_be_read_is_its_senders_error(change: str) -> None:
    found = pulled(SuperLink(answer(HOSTILE), CHANGES[change]))
    assert found.has_error()
    assert found.metadata.src_node_id == HOSTILE
    assert found.metadata.reply_to_message_id == "question-5"
