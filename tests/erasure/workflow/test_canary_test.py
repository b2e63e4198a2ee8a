"""What the leaver's canaries say decides: no trace, more rounds, the next rung, retraining."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from harness.erasure import small
from harness.erasure.small import NOW
from secede.erasure.documents.canary_reading import (
    ABSENT,
    NO_CANARIES,
    NOT_ASKED,
    UNSOUND,
    CanaryCommitment,
    CanaryReading,
    SignedReading,
)
from secede.erasure.documents.data_commitment import commit_to_samples
from secede.erasure.documents.plan import Plan
from secede.erasure.documents.receipt import Scope
from secede.erasure.documents.request import unverified_request
from secede.erasure.documents.signed_reading import sign_reading
from secede.erasure.planning.options import EraseOptions
from secede.erasure.receipts.verify import verify_receipt
from secede.erasure.signing.keys import load_private_key
from secede.erasure.storage.home import Home
from secede.erasure.storage.transition_details import CanariesDetails
from secede.erasure.workflow import erase
from secede.errors import SilentError
from secede.federation.engine import Cost
from secede.simulation.backend import SimulatedBackend
from secede.state import State

PLANTED = CanaryCommitment(
    commitment=commit_to_samples([bytes([n]) for n in range(48)], bytes(32)),
    kind="made-up",
    copies=2,
    share=0.1,
)
SEEN, FADING, GONE = (39, 9, 0, 0), (24, 10, 8, 6), (12, 12, 12, 12)  # ranks among four
Change = Callable[[CanaryReading], CanaryReading]


class Marked(SimulatedBackend):
    """A leaver whose canaries say so much of the model from before, and then look by look."""

    def __init__(
        self,
        home: Home,
        *looks: Sequence[int],
        before: Sequence[int] = SEEN,
        change: Change = lambda reading: reading,
        signer: str | None = "site-0",
        **options: Any,
    ) -> None:
        super().__init__(home, **options)
        self.before, self.looks, self.change, self.signer = before, [*looks], change, signer
        self.asked = list[str]()

    def scope(self, client: str) -> Scope:
        return super().scope(client).model_copy(update={"canaries": PLANTED})

    def read_canaries(
        self, client: str, state: State, plan: Plan, model: str
    ) -> tuple[SignedReading, Cost]:
        self.asked.append(model)
        ranks = tuple(self.before if model == plan.model else self.looks.pop(0))
        reading = CanaryReading(
            federation=plan.federation,
            client=client,
            request=plan.request,
            model=model,
            root=PLANTED.commitment.root,
            ranks=(ranks,),
            wins=24 if ranks == GONE else ranks[0],
            count=48,
        )
        key = self._home.path / "sites" / f"{self.signer}.key"
        signer = None if self.signer is None else load_private_key(key)
        return sign_reading(self.change(reading), signer), Cost(download_bytes=7, upload_bytes=5)


def run(home: Home, backend: Marked, **how: Any) -> erase.Outcome:
    return small.erase(home, small.receive(home).id, ground=backend, how=small.options(**how))


def readings(home: Home) -> list[CanariesDetails]:
    details = [transition.details for transition in small.course(home).transitions]
    return [each for each in details if isinstance(each, CanariesDetails)]


def test_without_a_trace_the_erasure_ends_and_the_receipt_has_both_readings(home: Home) -> None:
    before, backend = small.serving(home), Marked(home, GONE)
    outcome = run(home, backend)
    assert (outcome.state, outcome.rung) == ("promoted", "local-step")
    assert small.way(home)[-3:] == ["canaries-read", "verified", "promoted"]
    assert backend.asked == [before, outcome.model]
    told = small.told(home)
    assert told["verification"]["forgotten"] == "no-trace-found"
    canaries = told["verification"]["canaries"]
    assert told["scope"]["canaries"] == PLANTED.model_dump(mode="json")
    assert canaries["before"]["reading"]["ranks"] == [list(SEEN)]
    assert [look["after"]["reading"]["ranks"] for look in canaries["looks"]] == [[list(GONE)]]
    assert canaries["rule"]["looks"] == 7  # three on each of two rungs, and one after retraining
    assert outcome.receipt is not None
    receipt = verify_receipt(outcome.receipt.read_bytes(), home.keyring(), ledger=home.ledger)
    assert receipt.readings_signed


def test_a_trace_leads_to_the_rungs_last_round_and_then_to_the_next_rung(home: Home) -> None:
    before, backend = small.serving(home), Marked(home, SEEN, SEEN, GONE)
    outcome = run(home, backend, max_rounds=3)
    assert (outcome.state, outcome.rung) == ("promoted", "server-side")
    (failure,) = outcome.failures
    assert (failure.rung, failure.outcome) == ("local-step", "trace-found")
    assert "still tells the canaries" in failure.reason
    rounds = [(each.round, each.verdict) for each in readings(home)]
    assert rounds[0][0] < 3
    assert rounds[1] == (3, "trace-found")
    assert rounds[2][1] == "no-trace-found"
    assert backend.asked.count(before) == 1  # what it said before is known by now
    looks = small.told(home)["verification"]["canaries"]["looks"]
    assert [look["rung"] for look in looks] == ["local-step", "local-step", "server-side"]


def test_as_many_rounds_again_are_taken_where_the_trace_was_halved(home: Home) -> None:
    outcome = run(home, Marked(home, SEEN, FADING, GONE), max_rounds=2)
    assert (outcome.state, outcome.rung) == ("promoted", "local-step")
    assert [each.round for each in readings(home)][-2:] == [2, 4]


def test_rounds_are_not_taken_for_ever(home: Home) -> None:
    outcome = run(home, Marked(home, SEEN, FADING, FADING, GONE), max_rounds=2)
    assert (outcome.state, outcome.rung) == ("promoted", "server-side")
    assert [each.round for each in readings(home)][-2] == 4


def test_retraining_ends_it_whatever_the_client_says(home: Home) -> None:
    backend = Marked(home, *[SEEN] * 7)
    outcome = run(home, backend, max_rounds=1, max_server_rounds=1)
    assert (outcome.state, outcome.rung) == ("promoted", "retraining")
    told = small.told(home)["verification"]
    assert told["forgotten"] == "by-construction"
    rungs = [look["rung"] for look in told["canaries"]["looks"]]
    assert rungs == ["local-step", "retraining"]  # the gate gave up the one between


@pytest.mark.parametrize(
    ("before", "words"), [(GONE, "the test has no power here"), (SEEN, "do not show after it")]
)
def test_without_power_before_nothing_is_claimed(
    home: Home, before: Sequence[int], words: str
) -> None:
    lines = list[str]()
    entry, backend = small.receive(home), Marked(home, GONE, before=before)
    small.erase(home, entry.id, ground=backend, tell=lines.append)
    assert any(words in line for line in lines)
    expected = "undetermined" if before == GONE else "no-trace-found"
    assert small.told(home)["verification"]["forgotten"] == expected


class Silent(Marked):
    def read_canaries(self, *_: Any) -> tuple[SignedReading, Cost]:
        raise SilentError("it does not answer")


def test_who_is_not_there_leaves_it_undetermined(home: Home) -> None:
    outcome = run(home, Silent(home))
    assert (outcome.state, outcome.rung) == ("promoted", "local-step")
    told = small.told(home)["verification"]
    assert (told["forgotten"], told["canaries"]["absent"]) == ("undetermined", ABSENT)


@pytest.mark.parametrize(
    ("change", "signer"),
    [
        ({"model": "00" * 32}, "site-0"),
        ({"root": "00" * 32}, "site-0"),
        ({"request": "00" * 32}, "site-0"),
        ({"client": "site-2"}, "site-0"),
        ({"ranks": ((47, 0, 0, 0),), "wins": 47, "count": 47}, "site-0"),
        ({}, "site-2"),
    ],
)
def test_a_reading_of_something_else_or_of_somebody_else_counts_for_nothing(
    home: Home, change: dict[str, Any], signer: str
) -> None:
    backend = Marked(
        home, GONE, change=lambda reading: reading.model_copy(update=change), signer=signer
    )
    assert run(home, backend).state == "promoted"
    told = small.told(home)["verification"]
    assert (told["forgotten"], told["canaries"]["absent"]) == ("undetermined", UNSOUND)
    assert told["canaries"]["before"] is None


def test_a_client_without_a_key_reads_unsigned_and_the_receipt_says_so(home: Home) -> None:
    outcome = run(home, Marked(home, GONE, signer=None))
    told = small.told(home)
    assert told["verification"]["forgotten"] == "no-trace-found"
    assert any("its readings of the canaries are unsigned" in limit for limit in told["limits"])
    assert outcome.receipt is not None
    assert not verify_receipt(outcome.receipt.read_bytes(), home.keyring()).readings_signed


def test_nobody_is_asked_without_canaries(home: Home) -> None:
    plain = small.erase(home, small.receive(home).id)
    assert plain.state == "promoted"
    assert "canaries-read" not in small.way(home)
    told = small.told(home)["verification"]
    assert (told["forgotten"], told["canaries"]["absent"]) == ("undetermined", NO_CANARIES)


def test_nobody_is_asked_against_the_options(home: Home) -> None:
    backend = Marked(home)
    assert run(home, backend, measure_at_leaver=False).state == "promoted"
    told = small.told(home)["verification"]
    assert (told["forgotten"], told["canaries"]["absent"]) == ("undetermined", NOT_ASKED)
    assert backend.asked == []


def test_the_plan_has_the_rule_before_anybody_is_asked(home: Home) -> None:
    document = unverified_request(small.ask(home))
    plan = erase.plan(home, Marked(home), document, options=EraseOptions(), now=NOW)
    assert plan.canary_rule is not None
    assert (plan.canary_rule.level, plan.canary_rule.looks) == (0.01, 7)
    alone = EraseOptions(from_rung="retraining")
    plan = erase.plan(home, Marked(home), document, options=alone, now=NOW)
    assert plan.canary_rule is not None
    assert plan.canary_rule.looks == 1
