"""Every listed attack through the whole workflow, and at its door."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.erasure import attacks, small
from harness.erasure.hostile import HomeLab, row
from harness.erasure.lab import PLANTED, SMUGGLED, SMUGGLED_INSIDE
from harness.erasure.questions import FEDERATION, NOW, people
from secede.erasure.documents.request import new_request, unverified_request
from secede.erasure.planning.options import EraseOptions
from secede.erasure.storage.journal import Journal
from secede.erasure.storage.journal_entries import AlreadyAccepted
from secede.errors import RequestError, TrustError

ATTEMPTS = 100


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> HomeLab:
    return HomeLab(tmp_path_factory.mktemp("hostile"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "threat",
    [
        "destructive state, noise of 10 units",
        "destructive state, ascent to 1.2 units",
        "scaled state, × 10",
        "scaled state, × −1",
        "NaN",
        "swapped tensors",
    ],
)
def test_a_state_that_breaks_the_model_ends_on_the_next_rung(lab: HomeLab, threat: str) -> None:
    found = row(lab, threat, attacks.breaking(lab)[threat])
    outcomes = ("gate-failed", "broken") if "1.2 units" in threat else ("refused",)
    assert found.by.startswith(tuple(f"local-step: {outcome}; " for outcome in outcomes))
    assert "rolled back" not in found.by
    assert found.defended > max(0.88, found.without)


@pytest.mark.slow
def test_a_lazy_leaver_loses_its_backdoor_on_the_next_rung(lab: HomeLab) -> None:
    for returned in (lab.global_state, lab.reference):
        found = row(lab, "lazy", returned, PLANTED)
        assert found.without > 0.85
        assert found.defended < 0.05
        assert found.by.startswith("local-step: refused")


@pytest.mark.slow
def test_what_guard_and_gate_let_by_is_removed(lab: HomeLab) -> None:
    noisy = lab.noisy(lab.global_state, 0.05 * lab.unit)
    for returned, backdoor in (
        (noisy, PLANTED),
        (lab.backdoored(), SMUGGLED),
        (lab.backdoored(SMUGGLED_INSIDE), SMUGGLED_INSIDE),
    ):
        found = row(lab, "trusting", returned, backdoor)
        assert found.by.startswith("local-step: second-choice")
        assert found.without > 0.1
        assert found.defended < 0.05


@pytest.mark.slow
def test_distrust_takes_nothing_from_the_leaver(lab: HomeLab) -> None:
    distrust = EraseOptions(untrusted_leaver=True, max_server_rounds=10)
    returned = lab.backdoored(SMUGGLED_INSIDE)
    found = row(lab, "distrusting", returned, SMUGGLED_INSIDE, distrust)
    assert found.by == "server-side: weight-negation"
    assert found.defended < 0.05


def test_forged_requests_are_never_accepted(tmp_path: Path) -> None:
    who = people(tmp_path / "keys", "north", "south")
    with Journal(tmp_path / "journal.sqlite") as journal:
        for number in range(ATTEMPTS):
            claimed = new_request(
                federation=FEDERATION,
                client="north",
                trigger="objection",
                model=f"{number:064x}",
                now=NOW,
            )
            with pytest.raises(TrustError):
                who.send(journal, who.signed(claimed, by="south"))
        assert journal.entries() == []


def test_a_replayed_request_is_accepted_once(tmp_path: Path) -> None:
    who = people(tmp_path / "keys", "north")
    data = who.ask("north")
    with Journal(tmp_path / "journal.sqlite") as journal:
        who.send(journal, data)
        for _ in range(ATTEMPTS):
            assert isinstance(who.send(journal, data), AlreadyAccepted)
        nonce = unverified_request(data).nonce
        with pytest.raises(RequestError):
            who.send(journal, who.ask("north", nonce=nonce, trigger="other"))
        assert len(journal.entries()) == 1
        assert len(journal.transitions(1)) == 1


def test_a_request_replayed_after_the_erasure_starts_nothing(tmp_path: Path) -> None:
    home = small.make(tmp_path)
    data = small.ask(home)
    from secede.erasure.workflow import erase

    first = small.erase(home, erase.receive(home, data, small.NOW).id)
    left = small.timeless(home)
    for days in (1, 40):
        entry = erase.receive(home, data, small.later(days=days))
        assert small.erase(home, entry.id, now=small.later(days=days)) == first
    assert small.timeless(home) == left
