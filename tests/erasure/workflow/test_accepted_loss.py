"""Nobody stays in a model because it is better with them: what retraining loses, a person decides.

Before, retraining was gated by class, and a gate that stayed shut rolled the erasure back.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from harness.erasure import small
from harness.erasure.small import NOW
from secede import state as states
from secede.erasure.defences.gate import Counts, Tally
from secede.erasure.documents.plan import Margins
from secede.erasure.planning.options import EraseOptions
from secede.erasure.receipts.verify import verify_receipt
from secede.erasure.storage.home import Home
from secede.erasure.storage.transition_details import UndecidedDetails
from secede.erasure.workflow import erase
from secede.erasure.workflow.measurement import ACCEPTED, LOST
from secede.errors import ConfigError, LossError
from secede.simulation.backend import SimulatedBackend
from secede.state import State

WHY = "the client's consent was withdrawn"
LOSING = EraseOptions(untrusted_leaver=True, max_server_rounds=0)


class Counting(SimulatedBackend):
    """Clients that answer half of each class right before, and then `share` of all but one."""

    def __init__(self, home: Home, *, share: float, falls: int | None = None) -> None:
        super().__init__(home)
        self.before, self.share, self.falls = small.serving(home), share, falls

    def tally(self, clients: Sequence[int], state: State, before: State | None = None) -> Tally:
        plain = super().tally(clients, state)
        share = 0.5 if states.digest(state) == self.before else self.share
        counts = {
            client: Counts(
                tuple(
                    0 if share != 0.5 and label == self.falls else round(share * samples)
                    for label, samples in enumerate(own.samples)
                ),
                own.samples,
            )
            for client, own in plain.counts.items()
        }
        return Tally(counts, plain.left_out, plain.cost)


def test_a_class_that_falls_does_not_keep_anybody_in(home: Home) -> None:
    how = EraseOptions(untrusted_leaver=True, margins=Margins(overall=0.3, min_samples=1))
    ground = Counting(home, share=0.45, falls=1)
    outcome = small.erase(home, small.receive(home).id, ground=ground, how=how)
    assert (outcome.state, outcome.rung) == ("promoted", "retraining")
    assert [f.outcome for f in outcome.failures] == ["gate-failed"]
    assert outcome.failures[0].reason.startswith("class 1: ")


def test_a_loss_by_retraining_waits_for_a_person_and_the_receipt_says_who_accepted_it_and_why(
    home: Home,
) -> None:
    before, entry, ground = small.serving(home), small.receive(home), Counting(home, share=0.1)
    for _ in range(2):
        with pytest.raises(LossError, match=r"all samples: accuracy fell .* with --accept-loss"):
            small.erase(home, entry.id, ground=ground, how=LOSING)
        assert small.way(home)[-2:] == ["post-training", "undecided"]
        assert small.serving(home) == before
        assert home.model_path(before).exists()
    lines = list[str]()
    accepting = EraseOptions(accept_loss=WHY)  # counts though the plan is there
    outcome = small.erase(home, entry.id, ground=ground, how=accepting, tell=lines.append)
    assert (outcome.state, outcome.rung) == ("promoted", "retraining")
    assert not any("other options" in line for line in lines)
    assert not home.model_path(before).exists()
    told = small.told(home)
    details = [transition.details for transition in small.course(home).transitions]
    (reason,) = [each.reason for each in details if isinstance(each, UndecidedDetails)]
    assert {LOST.format(reason=reason), ACCEPTED.format(reason=WHY)} <= {*told["limits"]}
    assert told["verification"]["useful"] == "no"
    assert outcome.receipt is not None
    verify_receipt(outcome.receipt.read_bytes(), home.keyring(), ledger=home.ledger)


def test_a_loss_can_be_accepted_beforehand_and_is_stated_only_where_there_is_one(
    home: Home,
) -> None:
    other = small.copy(home, home.path.parent / "other")
    how = EraseOptions(untrusted_leaver=True, max_server_rounds=0, accept_loss=WHY)
    for place, share, stated in ((home, 0.1, True), (other, 0.9, False)):
        ground = Counting(place, share=share)
        outcome = small.erase(place, small.receive(place).id, ground=ground, how=how)
        assert outcome.state == "promoted"
        assert (ACCEPTED.format(reason=WHY) in small.told(place)["limits"]) is stated


def test_an_undecided_request_is_planned_again_after_another_erasure_or_closed(home: Home) -> None:
    entry = small.receive(home)
    with pytest.raises(LossError):
        small.erase(home, entry.id, ground=Counting(home, share=0.1), how=LOSING)
    other = small.copy(home, home.path.parent / "other")
    assert small.erase(home, small.receive(home, "site-1").id).state == "promoted"
    again = small.erase(home, entry.id, ground=Counting(home, share=0.9))
    assert again.state == "promoted"
    assert small.way(home).count("planned") == 2
    closed = erase.close_request(
        other,
        SimulatedBackend(other),
        entry.id,
        "withdrawn",
        key=other.server_key(),
        clock=lambda: NOW,
    )
    assert closed.state == "refused"
    assert not other.work_folder(entry.id).exists()


@pytest.mark.parametrize("reason", [" ", "a\nb", "x" * 251, "a\u200bb"])
def test_a_reason_that_a_receipt_cannot_state_is_refused_before_any_work(
    home: Home, reason: str
) -> None:
    entry = small.receive(home)
    with pytest.raises(ConfigError, match="--accept-loss needs a reason of 1 to 250 visible"):
        small.erase(home, entry.id, how=EraseOptions(accept_loss=reason))
    assert small.way(home) == ["received"]
