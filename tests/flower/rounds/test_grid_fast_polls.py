from __future__ import annotations

import time

import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from harness.flower.inprocess import InProcess
from harness.flower.small import Federation
from secede.flower.rounds import grid as grids
from secede.flower.rounds.grid import NetworkGrid, prepared


class HttpGrid(InProcess):
    """One that is called as Flower's own over the network."""


def messages(grid: InProcess) -> list[Message]:
    content = RecordDict({"c": ConfigRecord({"x": 1})})
    return [Message(content, node, "query.other", ttl=60) for node in grid.get_node_ids()]


def test_only_flowers_grid_over_the_network_is_asked_more_often(federation: Federation) -> None:
    grid = federation.grid()
    assert prepared(grid) is grid
    assert isinstance(prepared(HttpGrid(federation.sites, federation.app)), NetworkGrid)


def test_replies_are_taken_as_they_come(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grids, "_PAUSE", 0.01)
    federation.site("site-1").late = 3  # looks
    grid = federation.grid()
    replies = list(NetworkGrid(grid).send_and_receive(messages(grid)))
    assert len(replies) == len({r.metadata.reply_to_message_id for r in replies}) == 4


def test_who_is_silent_is_waited_for_as_long_as_is_said(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grids, "_PAUSE", 0.01)
    federation.site("site-1").silent = True
    grid, begun = federation.grid(), time.monotonic()
    assert len(list(NetworkGrid(grid).send_and_receive(messages(grid), timeout=0.1))) == 3
    assert 0.1 <= time.monotonic() - begun < 5
