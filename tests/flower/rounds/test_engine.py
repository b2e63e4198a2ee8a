"""Rounds of an erasure at the clients: in the form in which training sent them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod
from torch import Tensor, nn

from harness.flower.inprocess import Answer
from harness.flower.small import (
    CLASSES,
    FEATURES,
    NOW,
    OPTIONS,
    Federation,
    client_app,
    load_data,
    strategy,
)
from secede.flower import ClientErasure, Store, erase, recording
from secede.flower.protocol import arrays
from secede.flower.rounds import engine


class Unsorted(nn.Module):
    """Two layers of one shape, whose names do not come in the alphabet's order."""

    def __init__(self) -> None:
        super().__init__()
        self.second = nn.Linear(FEATURES, FEATURES, bias=False)
        self.first = nn.Linear(FEATURES, FEATURES, bias=False)
        self.out = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        found: Tensor = self.out(torch.relu(self.first(torch.relu(self.second(x)))))
        return found


def test_every_round_sends_the_arrays_in_the_models_order(tmp_path: Path) -> None:
    seen = list[tuple[str, ...]]()
    erasure = ClientErasure(Unsorted, load_data, consent=True)
    app = ClientApp(mods=[erasure.mod])

    @app.train()
    def train(message: Message, context: Any) -> Message:
        content: Any = message.content
        seen.append(tuple(content["arrays"]))
        model = Unsorted()
        for value, given in zip(  # by place, as many apps do
            model.state_dict().values(), content["arrays"].to_numpy_ndarrays(), strict=True
        ):
            value.copy_(torch.from_numpy(given))
        x, y = load_data(context)
        nn.functional.cross_entropy(model(x), y).backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        update = {"arrays": ArrayRecord(model.state_dict())}
        metrics = {"metrics": MetricRecord({"num-examples": len(y)})}
        return Message(RecordDict({**update, **metrics}), reply_to=message)

    federation = Federation(tmp_path, app=erasure.register(app))
    store = Store(tmp_path / "home", Unsorted, name="north", clock=lambda: NOW)
    recording(strategy(), store, online_timeout=0.3).start(
        federation.grid(), ArrayRecord(Unsorted().state_dict()), num_rounds=2, timeout=5
    )
    trained = len(seen)
    erase(
        federation.grid(),
        strategy(),
        store,
        leaver="name:site-1",
        trigger="other",
        options=OPTIONS,
        round_timeout=0.4,
        online_timeout=0.2,
        pause=0.01,
    )
    assert len(seen) > trained
    assert set(seen) == {tuple(Unsorted().state_dict())}


def test_a_client_is_erased_from_a_federation_with_noise(tmp_path: Path) -> None:
    noise = LocalDpMod(1.0, 0.001, 1.0, 1e-2)
    federation = Federation(tmp_path, app=client_app(train_mods=[noise]))
    federation.train(2)
    outcome = federation.erase()
    assert (outcome.state, outcome.rung) == ("promoted", "local-step")
    assert not federation.told.has("left out of the round")


def breaking(federation: Federation, times: int) -> list[str]:
    """Let site 1's app break off so often before it takes its local step."""
    asked, real = list[str](), federation.app

    def call(message: Message, context: Any) -> Message:
        if message.metadata.message_type == "train.unlearn":
            asked.append(str(context.node_config["partition-id"]))
            if len(asked) <= times:
                raise RuntimeError(f"CUDA out of memory while {WORDS} was on the device")
        return real(message, context)

    federation.site("site-1").app = cast("ClientApp", call)
    return asked


def test_a_leaver_whose_app_breaks_off_is_asked_again(federation: Federation) -> None:
    federation.train(3)
    asked = breaking(federation, 2)
    outcome = federation.erase(options=replace(OPTIONS, leaver_timeout=5.0))
    assert (outcome.state, outcome.rung) == ("promoted", "local-step")
    assert len(asked) == 3


def test_a_leaver_whose_app_always_breaks_off_is_given_up(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "_PAUSES", (1, 2))
    federation.train(3)
    asked = breaking(federation, 99)
    outcome = federation.erase(options=replace(OPTIONS, leaver_timeout=60.0, max_server_rounds=2))
    assert outcome.failures[0].outcome == "unable"
    assert len(asked) == 3


# A client's own words are printed, and kept nowhere


WORDS = "Jane Doe, bed 12"


def refuses(question: Message, reply: Message) -> Message:
    told = json.dumps({"error": "RecordError", "text": WORDS})
    reply.content["secede.answer"] = ConfigRecord({"json": told})
    return reply


def misnames(question: Message, reply: Message) -> Message:
    reply.content["secede.state"] = arrays.pack({WORDS: torch.zeros(2)})
    return reply


def reports(question: Message, reply: Message) -> Message:
    content: Any = reply.content
    told = json.loads(content["secede.answer"]["json"])
    told["report"]["ended_by"] = WORDS
    reply.content["secede.answer"] = ConfigRecord({"json": json.dumps(told)})
    return reply


def breaks_off(question: Message, reply: Message) -> Message:
    return Message(Error(2, f"ValueError: {WORDS}"), reply_to=question)


@pytest.mark.parametrize("say", [refuses, misnames, reports, breaks_off])
def test_a_clients_words_are_printed_and_not_kept(federation: Federation, say: Answer) -> None:
    federation.train(3)

    def answer(question: Message, reply: Message) -> Message | None:
        ours = question.metadata.message_type == "train.unlearn"
        return say(question, reply) if ours else reply

    federation.site("site-1").answer = answer
    outcome = federation.erase(options=replace(OPTIONS, max_server_rounds=4))
    home = federation.store.path
    files = [path for path in home.rglob("*") if path.is_file()]
    assert [str(path) for path in files if b"Jane Doe" in path.read_bytes()] == []
    assert "Jane Doe" not in str(outcome.failures)
    if say in (refuses, breaks_off):
        assert federation.told.has("client 'site-1'", "Jane Doe")
        assert "RecordError" in outcome.failures[0].reason
