"""Grids that show less, exchanges that end, tasks that travel, and what the package needs.

Tests `unlearning/client_tasks.py` too.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from harness.flower.inprocess import InProcess, sites
from harness.flower.small import STEP, client_app, initial
from harness.lines import Lines
from secede import flower
from secede.errors import ConfigError, SilentError
from secede.flower.protocol.nodes import Node, Roster, online_nodes, select
from secede.flower.rounds.grid import AdmissionGrid, DeadlineGrid, Transport
from secede.unlearning.client_tasks import (
    COUNT,
    LOCAL,
    MEASURE,
    CountRight,
    Measure,
    TaskMessage,
    from_message,
    to_message,
)
from secede.unlearning.method import TakeStep
from secede.unlearning.registry import create


@pytest.mark.parametrize("name", LOCAL)
def test_a_local_step_travels_as_name_and_json(name: str) -> None:
    method: Any = create(name, STEP if name == "projected-ascent" else {})[1]
    form = to_message(TakeStep(method))
    assert form.method == name
    again = from_message(TaskMessage(form.name, form.method, json.loads(json.dumps(form.settings))))
    assert again == TakeStep(method)


def test_counting_and_measuring_travel_by_name_alone() -> None:
    assert [to_message(task).name for task in (CountRight(), Measure())] == [COUNT, MEASURE]
    assert from_message(TaskMessage(COUNT, "", {})) == CountRight()
    with pytest.raises(ConfigError, match="unknown task 'exec'"):
        from_message(TaskMessage("exec", "", {}))


def test_a_hidden_node_is_neither_seen_nor_sent_to(tmp_path: Path) -> None:
    grid = InProcess(sites(3, tmp_path), client_app())
    hidden = grid.sites[next(iter(grid.sites))].node
    shown = AdmissionGrid(grid, Roster(online_nodes(grid), {"site-0"}))
    assert hidden not in shown.get_node_ids()
    message = Message(RecordDict({"a": ArrayRecord(initial())}), hidden, "train")
    for send in (shown.push_messages, shown.send_and_receive):
        with pytest.raises(ConfigError, match="which may not take part"):
            send([message])
    assert not grid.sites[hidden].seen


def test_flowers_endless_sampling_ends(tmp_path: Path) -> None:
    now = [0.0]
    told = Lines()
    grid = DeadlineGrid(InProcess(sites(2, tmp_path)), 10, clock=lambda: now[0])
    assert len(list(grid.get_node_ids())) == 2
    now[0] = 5.0
    list(grid.get_node_ids())
    now[0] = 8.0
    list(grid.get_node_ids())
    assert told.has("waiting for more clients, 2 are online")
    now[0] = 11.0
    with pytest.raises(SilentError, match="too few clients came within 10 seconds"):
        grid.get_node_ids()


def test_an_exchange_ends_in_time_and_says_who_is_awaited(tmp_path: Path) -> None:
    told, made = Lines(), sites(3, tmp_path)
    made[0].silent, made[1].vanishes, made[2].late = True, True, 2
    grid = InProcess(made, client_app())
    transport = Transport(grid=grid, pause=0.01)
    names = {site.node: site.name for site in made}
    content = RecordDict({"arrays": ArrayRecord(initial())})
    messages = [Message(content, site.node, "query.nothing") for site in made]
    started = time.monotonic()
    found = transport.send(messages, names, 0.3)
    assert time.monotonic() - started < 2
    assert list(found.lost) == [made[1].node]
    assert "No query function" in found.failed[made[2].node]
    assert not found.received
    assert told.has("waiting for", "site-0", "until", "UTC")


@pytest.mark.parametrize(
    ("forged", "value", "words"),
    [("_src_node_id", 12345, "from node 12345"), ("_message_type", "evaluate", "type 'evaluate'")],
)
def test_a_reply_of_another_node_or_type_is_none(
    tmp_path: Path, forged: str, value: Any, words: str
) -> None:
    class Forging(InProcess):
        def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
            found = list(super().pull_messages(message_ids))
            for message in found:
                message.metadata.__dict__[forged] = value
            return found

    made = sites(1, tmp_path)
    transport = Transport(grid=Forging(made, client_app()), pause=0.01)
    content = RecordDict(
        {"arrays": ArrayRecord(initial()), "config": ConfigRecord({"server-round": 1})}
    )
    found = transport.send([Message(content, made[0].node, "train")], {made[0].node: "site-0"}, 0.3)
    assert not found.received
    assert words in found.failed[made[0].node]


def test_waiting_for_nodes_to_come_online_ends(tmp_path: Path) -> None:
    made, told = sites(2, tmp_path), Lines()
    grid = InProcess(made, client_app())
    wanted = online_nodes(grid)
    made[1].online = False
    found = Transport(grid=grid, pause=0.01).wait_for_nodes(wanted, 0.1)
    assert list(found) == ["site-0"]
    assert told.has("waiting for site-1 until", "to come online")


def test_identity_is_the_key_then_the_name_then_the_id() -> None:
    keyed = Node(name="a", node=1, key="k")
    assert keyed.same(Node(name="b", node=2, key="k"))
    assert not keyed.same(Node(name="a", node=1, key="other"))
    assert not keyed.same(Node(name="a", node=1))  # it lost its key: a stranger
    assert Node(name="a", node=1).same(Node(name="a", node=2))
    assert not Node(name="node-1", node=1).same(Node(name="node-1", node=2))


def test_a_selector_that_two_clients_match_is_refused() -> None:
    twins = (Node(name="a", node=1, key="k"), Node(name="a", node=2, key="l"))
    with pytest.raises(ConfigError, match="matches 2 clients, expected exactly one"):
        select("name:a", twins)
    assert select("node:2", twins) == twins[1]


def test_the_package_exports_what_it_says() -> None:
    assert sorted(flower.__all__) == dir(flower)
    for name in flower.__all__:
        assert getattr(flower, name).__doc__


def test_without_flower_the_error_says_what_to_install() -> None:
    program = (
        "import importlib.util as u; real = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'flwr' else real(name, *a)\n"
        "import secede.flower"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert found.returncode == 1
    assert found.stderr.strip().splitlines()[-1] == (
        "ImportError: secede.flower needs Flower, which is not installed: "
        "pip install '.[flower]' in a checkout, or 'secede[flower]' from a release"
    )
