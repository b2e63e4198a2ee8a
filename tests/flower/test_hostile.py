"""Clients that lie or break off in the middle of an erasure in Flower."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, Message

from harness.flower.small import OPTIONS, Federation, initial
from secede.errors import LossError
from secede.flower.client.kept_updates import KeptUpdates
from secede.flower.protocol.arrays import pack

# What hostile clients send


def put(reply: Message, record: str, name: str, value: Any) -> None:
    content: Any = reply.content
    content[record][name] = value


def other_state(change: Any) -> Any:
    def answer(question: Message, reply: Message) -> Message:
        if question.metadata.message_type == "train.unlearn":
            reply.content["secede.state"] = change(reply.content["secede.state"])
        return reply

    return answer


HOSTILE = {
    "noise": lambda _: pack({n: torch.randn_like(v) * 1e3 for n, v in initial().items()}),
    "nan": lambda _: pack({n: v * float("nan") for n, v in initial().items()}),
    "another network": lambda _: pack({"w": torch.zeros(3)}),
    "a plain record": lambda _: ArrayRecord(initial()),
    "nothing": lambda _: ArrayRecord(),
    "too much": lambda _: pack({**initial(), "more": torch.zeros(100_000)}),
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=list(HOSTILE))
def test_a_hostile_leavers_state_is_refused_and_the_ladder_goes_on(
    federation: Federation, change: Any
) -> None:
    federation.train(3)
    federation.site("site-1").answer = other_state(change)
    outcome = federation.erase("name:site-1", options=replace(OPTIONS, max_server_rounds=8))
    assert outcome.failures[0].outcome == "refused"
    assert outcome.state == "promoted"


REPORTS = ["", "[1]", '{"report": {}}', "{" * 1000, '{"report": NaN}', '{"error": 5}', "\ud800x"]


@pytest.mark.parametrize("text", REPORTS)
def test_a_hostile_leavers_report_ends_its_rung_and_nothing_else(
    federation: Federation, text: str
) -> None:
    federation.train(2)

    def answer(question: Message, reply: Message) -> Message:
        if question.metadata.message_type == "train.unlearn":
            put(reply, "secede.answer", "json", text.encode("utf-8", "replace").decode())
        return reply

    federation.site("site-1").answer = answer
    outcome = federation.erase("name:site-1", options=replace(OPTIONS, max_server_rounds=8))
    assert outcome.failures[0].rung == "local-step"
    assert outcome.state == "promoted"


def test_hostile_updates_in_post_training_are_left_out_and_named(federation: Federation) -> None:
    federation.train(3)

    def answer(question: Message, reply: Message) -> Message:
        if question.metadata.message_type == "train":
            reply.content["arrays"] = ArrayRecord({"0.weight": torch.zeros(2)})
        return reply

    federation.site("site-0").answer = answer
    outcome = federation.erase("name:site-1")
    assert outcome.state == "promoted"
    assert federation.told.has("left out of the round", "site-0", "names differ")


@pytest.mark.parametrize("samples", [10**12, -1, 0.5])
def test_an_update_whose_weight_cannot_be_is_left_out(
    federation: Federation, samples: float
) -> None:
    federation.train(3)

    def answer(question: Message, reply: Message) -> Message:
        if question.metadata.message_type == "train":
            put(reply, "metrics", "num-examples", samples)
        return reply

    federation.site("site-0").answer = answer
    federation.erase("name:site-1")
    assert federation.told.has("left out of the round", "site-0")
    last = federation.store.last_round()
    assert last is not None
    assert "site-0" not in {c.client for c in last.clients}


def test_counts_far_beyond_what_was_recorded_are_left_out(federation: Federation) -> None:
    federation.train(3)

    def answer(question: Message, reply: Message) -> Message:
        if question.metadata.message_type == "query.secede":
            numbers = {"right": [0, 0, 0], "samples": [10**9, 0, 0]}
            lie = {"numbers": numbers, "samples": 10**9}
            put(reply, "secede.answer", "json", json.dumps(lie))
        return reply

    federation.site("site-0").answer = answer
    assert federation.erase("name:site-1").state == "promoted"


# Kills


@pytest.mark.parametrize("at", range(0, 14, 2))
def test_killed_at_any_message_the_same_call_ends_it(federation: Federation, at: int) -> None:
    federation.train(3)
    grid = federation.grid()
    left = [at]

    def die(_: Message) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt

    grid.before = die
    try:
        federation.erase("name:site-1", grid=grid)
    except KeyboardInterrupt:
        assert federation.store.serving_digest() == federation.store.log.rounds()[2].model
    outcome = federation.erase("name:site-1")
    assert outcome.state == "promoted"
    whole = Federation(federation.folder / "whole")
    whole.train(3)
    assert outcome.model == whole.erase("name:site-1").model  # to the bit, however often killed


def test_killed_while_it_settles_the_rounds_are_not_lost(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    from secede.flower.backend import FlowerBackend

    federation.train(3)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(FlowerBackend, "commit", die)
        with pytest.raises(KeyboardInterrupt):
            federation.erase("name:site-1")
    cut = federation.store.last_round()
    assert cut is not None
    assert cut.model != federation.store.serving_digest()
    outcome = federation.erase("name:site-1")
    last = federation.store.last_round()
    assert last is not None
    assert (outcome.state, last.model) == ("promoted", outcome.model)
    assert {c.client for c in last.clients} == {"site-0", "site-2", "site-3"}


def test_rounds_that_led_nowhere_do_not_cost_a_client_its_update(federation: Federation) -> None:
    federation.train(3)
    kept = {n: KeptUpdates(federation.folder / f"disk-{n}" / f"partition-{n}") for n in (0, 2, 3)}
    last = federation.store.last_round()
    assert last is not None
    told = {each.client: str(each.digest) for each in last.clients}
    serving = {n: told[f"site-{n}"] for n in kept}
    strict = replace(OPTIONS, margins=OPTIONS.margins.model_copy(update={"min_samples": 10**6}))
    with pytest.raises(LossError, match="samples were counted, expected 1000000 or more"):
        federation.erase("name:site-1", options=strict)
    for n, updates in kept.items():
        assert updates.get(serving[n]) is not None
    outcome = federation.erase("name:site-2")
    assert outcome.rung == "local-step"
