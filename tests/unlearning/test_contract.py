"""What every method must keep, whatever it does: its needs, its costs, its repeatability."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from secede import state as states
from secede.federation.cost import Cost
from secede.federation.engine import ClientSide, Engine, ReplyT, RoundReply
from secede.state import State
from secede.unlearning.create import create
from secede.unlearning.method import Method, Server
from secede.unlearning.methods import METHODS
from unlearning import servers

SETTINGS: dict[str, dict[str, object]] = {"class-pruning": {"classes": [2], "share": 0.3}}


class Counting:
    """An engine that adds up what it is asked for, and may have lost the leaver."""

    def __init__(self, inner: Engine, *, leaver: int, online: bool) -> None:
        self._inner, self._leaver, self._online = inner, leaver, online
        self.total = Cost()

    def train_round(
        self, state: State, clients: Sequence[int], *, phase: str, number: int
    ) -> RoundReply:
        self._check(clients)
        reply = self._inner.train_round(state, clients, phase=phase, number=number)
        self.total += reply.cost
        return reply

    def ask(
        self, client: int, task: Callable[[ClientSide], ReplyT], *, global_state: State
    ) -> tuple[ReplyT, Cost]:
        self._check([client])
        reply, cost = self._inner.ask(client, task, global_state=global_state)
        self.total += cost
        return reply, cost

    def _check(self, clients: Sequence[int]) -> None:
        assert self._online or self._leaver not in clients, "the leaver is gone"


def method_and_server(name: str, folder: Path) -> tuple[Method, Server, Counting]:
    entry, method = create(name, SETTINGS.get(name))
    server = servers.server(
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


@pytest.mark.parametrize("name", [name for name, entry in METHODS.items() if entry.needs.history])
def test_without_the_history_it_needs_a_method_says_so(name: str, tmp_path: Path) -> None:
    from secede.errors import ConfigError

    method, server, _ = method_and_server(name, tmp_path)
    with pytest.raises(ConfigError, match="history"):
        method.start(replace(server, history=None))
