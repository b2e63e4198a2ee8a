from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from secede.erasure.defences import reply_checks
from secede.errors import GuardError
from secede.federation.engine import Update
from secede.unlearning.method import LocalReport, LocalResult, Reply

LIKE = {"weight": torch.zeros(2, 3), "steps": torch.zeros((), dtype=torch.int64)}
REPORT = LocalReport(
    steps=3,
    ended_by="chance",
    distance_to_own=1.0,
    distance_to_reference=float("inf"),
    accuracy=None,
    loss=0.5,
    gradient_samples=30,
)
ODD = {
    "nothing": None,
    "a list": [torch.zeros(2, 3)],
    "a name that is none": {1: torch.zeros(2, 3)},
    "a long name": {"x" * 2000: torch.zeros(2, 3)},
    "an array": {"weight": torch.zeros(2, 3).numpy()},
    "sparse": {"weight": torch.zeros(2, 3).to_sparse()},
    "without values": {"weight": torch.zeros(2, 3, device="meta")},
    "complex": {"weight": torch.zeros(2, 3, dtype=torch.complex64)},
}


@pytest.mark.parametrize("state", ODD.values(), ids=ODD)
def test_a_state_of_anything_but_plain_tensors_is_malformed(state: Any) -> None:
    assert not reply_checks.is_plain(state)
    update = Update(1, state, 5)
    assert reply_checks.fault_of_update(update, LIKE, 5) == "malformed"
    reply = Reply(state=state, gradient_samples=0, samples=5)
    assert reply_checks.fault_of_reply(reply, 5, limit_bytes=999) == "malformed"
    with pytest.raises(GuardError, match="plain dense tensors"):
        reply_checks.checked_result(LocalResult(state, REPORT), LIKE)


def test_a_sound_update_has_no_fault() -> None:
    assert reply_checks.fault_of_update(Update(1, LIKE, 5), LIKE, 5) is None
    assert reply_checks.fault_of_update(Update(1, LIKE, 5), LIKE, None) is None


@pytest.mark.parametrize("samples", [4, 6, 0, -5, 5.0, True, 10**15, None, "5"])
def test_samples_are_those_that_were_pinned(samples: Any) -> None:
    assert reply_checks.fault_of_update(Update(1, LIKE, samples), LIKE, 5) == "wrong-samples"


def test_shapes_kinds_and_values_are_checked() -> None:
    for weight in (torch.zeros(3, 2), torch.zeros(2, 3).double()):
        state = {**LIKE, "weight": weight}
        assert reply_checks.fault_of_update(Update(1, state, 5), LIKE, 5) == "malformed"
    state = {**LIKE, "weight": torch.full((2, 3), float("nan"))}
    assert reply_checks.fault_of_update(Update(1, state, 5), LIKE, 5) == "not-finite"


def test_a_reply_is_no_larger_than_a_model_may_be() -> None:
    reply = Reply(state={"x": torch.zeros(1000)}, gradient_samples=0, samples=5)
    assert reply_checks.fault_of_reply(reply, 5, limit_bytes=4000) is None
    assert reply_checks.fault_of_reply(reply, 5, limit_bytes=3999) == "malformed"
    assert reply_checks.fault_of_reply(reply, 5, limit_bytes=4000, template=LIKE) == "malformed"
    assert reply_checks.fault_of_reply(reply, 6, limit_bytes=4000) == "wrong-samples"
    many = replace(reply, gradient_samples=10**30)
    assert reply_checks.fault_of_reply(many, 5, limit_bytes=4000) == "malformed"


def test_a_report_keeps_its_numbers_and_our_own_words() -> None:
    assert reply_checks.checked_report(REPORT) == REPORT
    odd: Any = ("Jane",)
    told = replace(REPORT, ended_by="Jane Doe", searched=odd)
    assert reply_checks.checked_report(told) == replace(REPORT, ended_by="other")


@pytest.mark.parametrize("word", ["stop-distance", "stop-accuracy", "stop-loss", "epochs"])
def test_the_words_of_the_ascents_stops_are_our_own(word: str) -> None:
    told = replace(REPORT, ended_by=word)
    assert reply_checks.checked_report(told) == told


@pytest.mark.parametrize(
    "change",
    [
        {"ended_by": "x" * 65},
        {"ended_by": None},
        {"steps": "three"},
        {"steps": 10**30},
        {"loss": float("nan")},
        {"loss": [0.5]},
        {"gradient_samples": -1},
        {"gradient_samples": 1.5},
        {"gradient_samples": None},
    ],
)
def test_a_report_with_anything_else_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(GuardError, match="the returned report"):
        reply_checks.checked_report(replace(REPORT, **change))
    with pytest.raises(GuardError, match="not one of a local step"):
        reply_checks.checked_report({"steps": 3})
