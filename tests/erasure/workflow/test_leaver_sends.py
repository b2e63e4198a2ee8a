"""What the leaver sends through the whole workflow: refused, paid for, never quoted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from harness.erasure import small
from harness.erasure.liars import Liars
from harness.erasure.small import model, slow
from secede import state as states
from secede.erasure.planning.options import EraseOptions
from secede.erasure.storage.home import Home
from secede.erasure.storage.ledger import Ledger
from secede.erasure.storage.transition_details import LocalStepDetails
from secede.errors import DataError
from secede.unlearning.methods.projected_ascent import ProjectedAscent


@pytest.mark.parametrize(
    "change",
    [
        lambda s: {n: v.to_sparse() for n, v in s.items()},
        lambda s: {f"{n} Jane Doe": v for n, v in s.items()},
        slow(lambda s: {n: v.numpy() for n, v in s.items()}),
        slow(lambda s: {n: v[:1] for n, v in s.items()}),
        slow(lambda s: {n: v.to(torch.complex64) for n, v in s.items()}),
        slow(lambda s: {n: v.to("meta") for n, v in s.items()}),
        slow(lambda s: {}),
        slow(lambda s: None),
        slow(lambda s: dict(enumerate(s.values()))),
    ],
)
@pytest.mark.parametrize("method", [slow("projected-ascent"), "second-choice"])
def test_odd_states_of_the_leaver_are_refused(
    home: Home, change: Callable[[Any], Any], method: str
) -> None:
    how = small.options() if method == "projected-ascent" else EraseOptions()
    ground = Liars(home, leaver=change)
    outcome = small.erase(home, small.receive(home).id, ground=ground, how=how)
    assert outcome.rung == "server-side"
    assert outcome.failures[0].outcome == "refused"
    assert "Jane" not in str(small.course(home).transitions)


def test_a_refused_state_was_paid_for(home: Home) -> None:
    ground = Liars(home, leaver=lambda s: {n: v * float("nan") for n, v in s.items()})
    small.erase(home, small.receive(home).id, ground=ground)
    size = states.size_bytes(model(home))
    (given_up,) = small.course(home).failures
    assert given_up.exchange is not None
    assert given_up.exchange.cost.upload_bytes == size
    assert given_up.scalars()["upload_bytes"] == size


def test_a_leavers_words_do_not_get_into_journal_or_ledger(home: Home) -> None:
    ground = Liars(home, report=lambda r: replace(r, ended_by="Jane Doe, born 1970-01-01"))
    assert small.erase(home, small.receive(home).id, ground=ground).rung == "local-step"
    (step,) = [t for t in small.course(home).transitions if t.state == "local-step"]
    assert isinstance(step.details, LocalStepDetails)
    assert step.details.report["ended_by"] == "other"
    with Ledger(home.ledger, read_only=True) as ledger:
        assert not any("Jane" in str(row.body) for row in ledger.rows())


@pytest.mark.parametrize(
    "change", [{"ended_by": "x" * 78_000}, {"steps": "many"}, {"gradient_samples": 10**30}]
)
def test_a_report_that_is_none_is_refused(home: Home, change: dict[str, Any]) -> None:
    ground = Liars(home, report=lambda r: replace(r, **change))
    outcome = small.erase(home, small.receive(home).id, ground=ground)
    assert outcome.failures[0].outcome == "refused"


def test_samples_of_the_leaver_s_that_nobody_can_train_with_end_the_rung(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise DataError("the leaver's inputs hold values that are not finite")

    monkeypatch.setattr(ProjectedAscent, "unlearn", broken)
    outcome = small.erase(home, small.receive(home).id)
    assert (outcome.state, outcome.rung) == ("promoted", "server-side")
    assert outcome.failures[0].outcome == "broken"


def test_where_something_failed_is_told_and_never_the_words(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        return torch.zeros(2) @ torch.zeros(3)

    monkeypatch.setattr(ProjectedAscent, "unlearn", broken)
    small.erase(home, small.receive(home).id)
    (given_up,) = small.course(home).failures
    place = f"{__name__}, line {broken.__code__.co_firstlineno + 1}"
    assert given_up.outcome == "broken"
    assert given_up.reason.startswith(f"RuntimeError in {place}: the method cannot compute")
    assert "size" not in given_up.reason
