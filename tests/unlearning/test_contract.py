"""What every method must keep, whatever it does: its needs, its costs, its repeatability.

Tests `unlearning/method.py`, `unlearning/methods/fine_tune.py` and `unlearning/methods/retrain.py`
too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from harness import servers
from secede import state as states
from secede.errors import ConfigError
from secede.federation.engine import ClientSide, Cost, Engine, ReplyT, RoundReply, aggregate
from secede.state import State
from secede.unlearning.method import Method, Server
from secede.unlearning.registry import METHODS, create

SETTINGS: dict[str, dict[str, object]] = {"class-pruning": {"classes": [2], "share": 0.3}}


class Counting:
    """An engine that adds up what it is asked for, and may have lost the leaver."""

    def __init__(self, inner: Engine, *, leaver: int, online: bool) -> None:
        self._inner, self._leaver, self._online = inner, leaver, online
        self.total = Cost()
        self.asked: list[tuple[int, int]] = []

    def train_round(
        self, state: State, clients: Sequence[int], *, phase: str, number: int
    ) -> RoundReply:
        self._check(clients)
        reply = self._inner.train_round(state, clients, phase=phase, number=number)
        self.total += reply.cost
        return reply

    def ask(
        self,
        client: int,
        task: Callable[[ClientSide], ReplyT],
        *,
        global_state: State,
        number: int = 0,
    ) -> tuple[ReplyT, Cost]:
        self._check([client])
        reply, cost = self._inner.ask(client, task, global_state=global_state, number=number)
        self.asked.append((client, number))
        self.total += cost
        return reply, cost

    def _check(self, clients: Sequence[int]) -> None:
        assert self._online or self._leaver not in clients, "the leaver is gone"


def method_and_server(
    name: str, folder: Path, *, rounds: int = 4
) -> tuple[Method, Server, Counting]:
    entry, method = create(name, SETTINGS.get(name))
    server = servers.server(
        rounds=rounds,
        history=folder / "history" if entry.needs.history else None,
        unlabelled=servers.blobs(40, seed=7).x if entry.needs.server_data else None,
    )
    engine = Counting(server.engine, leaver=server.leaver, online=entry.needs.leaver_online)
    return method, replace(server, engine=engine), engine


@pytest.mark.parametrize("name", METHODS)
def test_a_method_erases_with_no_more_than_it_says_it_needs(name: str, tmp_path: Path) -> None:
    method, server, engine = method_and_server(name, tmp_path)
    start = method.start(server)
    states.check_schema(start.state, server.global_state)
    states.check_finite(start.state)
    # What crossed the wire is counted by the engine; gradients at the server come on top.
    assert start.cost.upload_bytes == engine.total.upload_bytes
    assert start.cost.download_bytes == engine.total.download_bytes
    assert start.cost.gradient_samples >= engine.total.gradient_samples
    after = method.recover(server, start.state, start.memory, 1)
    states.check_schema(after.state, server.global_state)
    states.check_finite(after.state)
    assert after.cost.rounds == 1
    uploads = states.size_bytes(server.global_state) * len(server.retained)
    assert after.cost.upload_bytes >= uploads


@pytest.mark.parametrize("name", METHODS)
def test_a_method_repeats_to_the_bit_and_leaves_what_it_was_given(
    name: str, tmp_path: Path
) -> None:
    digests = []
    for turn in ("first", "second"):
        method, server, _ = method_and_server(name, tmp_path / turn)
        before = states.digest(server.global_state)
        start, state = servers.erase(method, server, rounds=2)
        assert states.digest(server.global_state) == before
        digests.append((states.digest(start.state), states.digest(state)))
    assert digests[0] == digests[1]


@pytest.mark.parametrize("name", METHODS)
def test_post_training_goes_on_from_what_was_saved(name: str, tmp_path: Path) -> None:
    method, server, _ = method_and_server(name, tmp_path)
    start = method.start(server)
    first = method.recover(server, start.state, start.memory, 1)
    # A checkpoint holds copies of state and memory, nothing else.
    state = {key: value.clone() for key, value in first.state.items()}
    memory = {key: value.clone() for key, value in first.memory.items()}
    torch.manual_seed(1234)
    resumed = method.recover(server, state, memory, 2).state
    went_on = method.recover(server, first.state, first.memory, 2).state
    assert states.digest(resumed) == states.digest(went_on)


@pytest.mark.parametrize("name", METHODS)
def test_no_client_is_asked_twice_with_the_same_draw(name: str, tmp_path: Path) -> None:
    method, server, engine = method_and_server(name, tmp_path, rounds=6)
    servers.erase(method, server, rounds=2)
    assert len(set(engine.asked)) == len(engine.asked)


def without_the_leaver_in_the_last_round() -> Server:
    """Train three rounds, the last without the leaver; its own state is of the second."""
    server = servers.server(rounds=2)
    reply = server.engine.train_round(
        server.global_state, server.retained, phase="training", number=3
    )
    return replace(server, global_state=aggregate(reply.updates))


@pytest.mark.parametrize("name", ["second-choice", "projected-ascent", "virtual-teacher"])
def test_a_leaver_that_missed_the_last_round_starts_from_the_others_mean(name: str) -> None:
    method, server = create(name)[1], without_the_leaver_in_the_last_round()
    start = method.start(server)
    assert start.report is not None
    assert start.report["own_weight"] == 0
    # The others' mean is the model itself: nothing is taken out that is not in it.
    moved = states.distance(start.state, server.global_state)
    assert start.report["distance_to_reference"] == pytest.approx(moved, rel=1e-5)
    assert moved > 0


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("reference", "the leaver missed the last round, .* nothing would be forgotten"),
        ("negated-update", "missed the last round, .*; give scale"),
    ],
)
def test_what_cannot_work_for_a_leaver_that_missed_the_last_round_says_so(
    name: str, told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        create(name)[1].start(without_the_leaver_in_the_last_round())


def test_a_leaver_that_was_alone_in_the_last_round_is_told() -> None:
    server = servers.server(rounds=1)
    reply = server.engine.train_round(server.global_state, (0,), phase="training", number=2)
    alone = replace(server, global_state=aggregate(reply.updates))
    with pytest.raises(ConfigError, match="alone in the last round"):
        create("projected-ascent")[1].start(alone)


@pytest.mark.parametrize("name", [name for name, entry in METHODS.items() if entry.needs.history])
def test_without_the_history_it_needs_a_method_says_so(name: str, tmp_path: Path) -> None:
    method, server, _ = method_and_server(name, tmp_path)
    with pytest.raises(ConfigError, match="history"):
        method.start(replace(server, history=None))
