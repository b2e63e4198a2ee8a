from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from harness import servers
from secede import state as states
from secede.erasure.defences import gate as gates
from secede.erasure.defences.gate import Counts, accuracy_loss, find_loss, find_veto
from secede.erasure.documents.plan import Margins
from secede.errors import GuardError, SilentError
from secede.federation.engine import ClientSide, LocalTraining
from secede.federation.simulator import Simulator
from secede.state import State
from secede.unlearning.method import Reply
from secede.verification.score import share


def counts(*pairs: tuple[int, int]) -> Counts:
    return Counts(tuple(right for right, _ in pairs), tuple(samples for _, samples in pairs))


MARGINS = Margins()
BEFORE = counts((950, 1000), (950, 1000), (0, 0))


def engine() -> Simulator:
    clients = [servers.blobs(size, seed=size) for size in (24, 30, 18)]
    return Simulator(clients, servers.network, training=LocalTraining(), seed=0, executor="loop")


def constant(label: int) -> State:
    """Return the state of a network that answers `label` to everything."""
    state = {name: torch.zeros_like(v) for name, v in engine().initial_state("any").items()}
    state["5.bias"] = torch.nn.functional.one_hot(torch.tensor(label), servers.CLASSES).float()
    return state


def test_clients_count_their_own_samples_by_class() -> None:
    at = engine()
    told = gates.tally(at, (1, 2), constant(1))
    found, cost = gates.total([*told.counts.values()]), told.cost
    labels = torch.cat([at.clients[1].y, at.clients[2].y])
    by_class = torch.bincount(labels, minlength=3).tolist()
    assert found == Counts((0, by_class[1], 0), tuple(by_class))
    assert sum(found.samples) == 30 + 18
    # Two vectors of three 64-bit counts from each of two clients, and nothing else.
    assert (cost.rounds, cost.upload_bytes, cost.gradient_samples) == (0, 2 * 2 * 3 * 8, 0)


def test_labels_beyond_the_networks_outputs_are_not_counted() -> None:
    at = engine()
    at.clients[1].y[0] = servers.CLASSES
    found = gates.tally(at, (1, 2), constant(1))
    assert (set(found.counts), dict(found.left_out)) == ({2}, {1: "malformed"})


def test_answers_that_are_not_finite_are_wrong() -> None:
    at = engine()
    bad = {name: torch.full_like(v, math.nan) for name, v in constant(0).items()}
    found = gates.tally(at, (1, 2), bad).counts
    assert [found[client].right for client in (1, 2)] == [(0, 0, 0), (0, 0, 0)]


def test_counting_leaves_the_state_as_it_was() -> None:
    state = constant(1)
    digest = states.digest(state)
    gates.tally(engine(), (1, 2), state)
    assert states.digest(state) == digest


@pytest.mark.parametrize(
    ("right", "samples"),
    [
        ([31, 0, 0], [10, 10, 10]),
        ([-1, 0, 0], [10, 10, 10]),
        ([0, 0, 0], [10**9, 0, 0]),
        ([0, 0], [10, 10, 10]),
        ([0.0, 0.0, 0.0], [10.0, 10.0, 10.0]),
    ],
)
def test_counts_that_do_not_add_up_are_refused(
    right: list[int], samples: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lie(side: ClientSide) -> Reply:
        state = {"right": torch.tensor(right), "samples": torch.tensor(samples)}
        return Reply(state=state, gradient_samples=0, samples=side.samples)

    monkeypatch.setattr(gates, "CountRight", lambda _before: lie)
    found = gates.tally(engine(), (1, 2), constant(0))
    assert (dict(found.counts), dict(found.left_out)) == ({}, {1: "malformed", 2: "malformed"})


def test_more_samples_than_sums_can_hold_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # Two such claims made the journal's sums too large, which ended the command each time.
    def lie(side: ClientSide) -> Reply:
        most = 2**53 - 1
        state = {"right": torch.tensor([0, 0, 0]), "samples": torch.tensor([most, 0, 0])}
        return Reply(state=state, gradient_samples=0, samples=most)

    monkeypatch.setattr(gates, "CountRight", lambda _before: lie)
    assert dict(gates.tally(engine(), (1, 2), constant(0)).left_out) == dict.fromkeys(
        (1, 2), "malformed"
    )


def test_who_is_silent_is_left_out_of_the_tally() -> None:
    class Half:
        def ask(self, client: int, *task: Any, **how: Any) -> Any:
            if client == 1:
                raise SilentError("client 1 does not answer")
            return engine().ask(client, *task, **how)

    found = gates.tally(Half(), (1, 2), constant(1))  # type: ignore[arg-type]
    assert dict(found.left_out) == {1: "silent"}
    assert sum(found.counts[2].samples) == 18


def test_sums_of_counts_do_not_overflow() -> None:
    most = counts((2**62, 2**62))
    assert gates.total([most] * 4) == counts((2**64, 2**64))


HELD_OUT = counts((190, 200), (190, 200), (190, 200))
RETAINED = counts((950, 1000), (950, 1000), (0, 0))


def test_held_out_samples_veto_a_sure_loss_only() -> None:
    assert find_veto(MARGINS, HELD_OUT, HELD_OUT, RETAINED) is None
    assert (
        find_veto(MARGINS, HELD_OUT, counts((176, 200), (190, 200), (190, 200)), RETAINED) is None
    )
    objection = find_veto(MARGINS, HELD_OUT, counts((100, 200), (190, 200), (190, 200)), RETAINED)
    assert objection is not None
    # Half of the retained clients' samples are of class 0: 45 points there are 22.5 in all.
    assert "held-out samples: accuracy fell by 22.5%" in objection


def test_a_class_that_only_the_leaver_held_may_fall_at_the_server_too() -> None:
    assert find_veto(MARGINS, HELD_OUT, counts((190, 200), (190, 200), (0, 200)), RETAINED) is None


def test_few_held_out_samples_do_not_veto() -> None:
    assert (
        find_veto(MARGINS, counts((9, 9), (9, 9)), counts((0, 9), (0, 9)), counts((5, 9), (5, 9)))
        is None
    )
    with pytest.raises(GuardError, match="different numbers of classes"):
        find_veto(MARGINS, HELD_OUT, HELD_OUT, counts((5, 9)))


def test_the_losss_interval_matches_newcombes_example() -> None:
    # Newcombe 1998, table II (a), method 10: 56/70 and 48/80 differ by 0.2 (0.0524, 0.3339).
    found = accuracy_loss(share(56, 70), share(48, 80), 0.95)
    assert found.value == pytest.approx(0.2)
    assert (found.low, found.high) == pytest.approx((0.0524, 0.3339), abs=5e-5)


def test_an_unchanged_model_passes() -> None:
    assert find_loss(MARGINS, BEFORE, BEFORE) is None
    assert find_loss(Margins(overall=0.0, per_class=0.0), BEFORE, BEFORE) is None


def test_a_large_loss_overall_fails() -> None:
    reason = find_loss(MARGINS, BEFORE, counts((850, 1000), (850, 1000), (0, 0)))
    assert reason is not None
    assert reason.startswith("all samples: accuracy fell from 95.0% to 85.0% of 2,000")


def test_a_large_loss_in_one_class_fails() -> None:
    reason = find_loss(Margins(overall=0.2), BEFORE, counts((950, 1000), (750, 1000), (0, 0)))
    assert reason is not None
    assert reason.startswith("class 1: accuracy fell from 95.0% to 75.0% of 1,000")


def test_a_class_may_fall_where_all_samples_together_surely_rise() -> None:
    # Class 1 was inflated; class 0 rises by 30 points, or by a fifth of a point.
    before, after = counts((600, 1000), (290, 300)), counts((900, 1000), (200, 300))
    assert find_loss(MARGINS, before, after) is None
    reason = find_loss(MARGINS, before, counts((692, 1000), (200, 300)))
    assert reason is not None
    assert reason.startswith("class 1: accuracy fell from 96.7% to 66.7%")


def test_no_class_is_judged_after_retraining() -> None:
    before, after = counts((950, 1000), (100, 100)), counts((950, 1000), (0, 100))
    assert find_loss(Margins(overall=0.1), before, after) is not None
    assert find_loss(Margins(overall=0.1), before, after, by_class=False) is None
    assert find_loss(MARGINS, before, counts((0, 1000), (0, 100)), by_class=False) is not None


def test_a_loss_that_may_be_chance_passes() -> None:
    # 6 points are more than the margin of 5, but with 300 samples the interval reaches below it.
    assert find_loss(MARGINS, counts((285, 300)), counts((267, 300))) is None
    assert find_loss(MARGINS, counts((28500, 30000)), counts((26700, 30000)))


def test_a_class_with_too_few_samples_does_not_decide() -> None:
    before, after = counts((950, 1000), (29, 29)), counts((950, 1000), (0, 29))
    assert find_loss(MARGINS, before, after) is None
    reason = find_loss(Margins(min_samples=29), before, after)
    assert reason is not None
    assert reason.startswith("class 1: ")


def test_too_few_samples_in_all_cannot_pass() -> None:
    reason = find_loss(MARGINS, counts((5, 5)), counts((5, 5)))
    assert reason == "5 samples were counted, expected 30 or more"


def test_counts_of_other_samples_are_refused() -> None:
    with pytest.raises(GuardError, match="not of the same samples"):
        find_loss(MARGINS, counts((5, 50)), counts((5, 60)))


def changed(before: Counts, *changes: tuple[int, int]) -> Counts:
    """Return the counts after so many samples of each class were lost and gained."""
    lost, gained = (tuple(values) for values in zip(*changes, strict=True))
    rows = zip(before.right, lost, gained, strict=True)
    return Counts(tuple(r - b + c for r, b, c in rows), before.samples, lost, gained)


def test_clients_compare_with_the_model_from_before() -> None:
    at = engine()
    told = gates.tally(at, (1, 2), constant(1), constant(0))
    found = gates.total([*told.counts.values()])
    labels = torch.cat([at.clients[1].y, at.clients[2].y])
    zeros, ones, twos = torch.bincount(labels, minlength=3).tolist()
    assert found == Counts((0, ones, 0), (zeros, ones, twos), (zeros, 0, 0), (0, ones, 0))
    assert told.cost.upload_bytes == 2 * 4 * 3 * 8


def test_the_samples_whose_answer_changed_decide() -> None:
    before = counts((90, 100))
    # 13 points: unpaired that may be chance, and so it may be where others were gained.
    assert find_loss(MARGINS, before, counts((77, 100))) is None
    reason = find_loss(MARGINS, before, changed(before, (13, 0)))
    assert reason is not None
    assert reason.startswith("all samples: accuracy fell from 90.0% to 77.0% of 100 samples")
    assert find_loss(MARGINS, before, changed(before, (23, 10))) is None
    wide = Margins(overall=0.5)
    assert find_loss(wide, before, counts((73, 100))) is None
    reason = find_loss(wide, before, changed(before, (20, 0)))
    assert reason is not None
    assert reason.startswith("class 0: ")


def test_rounding_at_the_clients_widens_the_loss() -> None:
    before = counts((90, 100))
    after = changed(before, (13, 0))
    assert find_loss(MARGINS, before, after, variance=2.0) is not None
    assert find_loss(MARGINS, before, after, variance=20.0) is None
    exact, blurred = (gates.overall_loss(before, after, 0.95, variance) for variance in (0.0, 4.0))
    z = 1.959964
    assert exact.value == blurred.value == pytest.approx(0.13)
    for end in ("low", "high"):
        far, near = (getattr(loss, end) - 0.13 for loss in (blurred, exact))
        assert far**2 == pytest.approx(near**2 + (z * 2 / 100) ** 2, rel=1e-5)


def test_one_client_that_does_not_compare_leaves_the_counts_to_decide() -> None:
    before = counts((90, 100))
    both = gates.total([changed(before, (13, 0)), counts((80, 100))])
    assert both == counts((157, 200))


def test_changes_that_do_not_lead_from_before_to_after_are_not_believed() -> None:
    before = counts((90, 100), (80, 100))
    after = changed(before, (13, 2), (0, 3))
    assert gates.consistent_changes(before, after) == after
    lie = Counts(after.right, after.samples, (0, 0), after.gained)
    assert gates.consistent_changes(before, lie) == Counts(after.right, after.samples)
    assert gates.consistent_changes(before, lie, variance=6.0) == Counts(after.right, after.samples)
    near = Counts(after.right, after.samples, (14, 0), after.gained)
    assert gates.consistent_changes(before, near) == Counts(after.right, after.samples)
    assert gates.consistent_changes(before, near, variance=0.5) == near
    alone = Counts(after.right, after.samples)
    assert gates.consistent_changes(before, alone) == alone


@pytest.mark.parametrize(
    "changes",
    [
        {"lost": [0, 1, 0]},
        {"gained": [0, 0, 0]},
        {"lost": [-1, 0, 0], "gained": [0, 0, 0]},
        {"lost": [0, 0, 0], "gained": [99, 0, 0]},
        {"lost": [99, 0, 0], "gained": [0, 0, 0]},
        {"lost": [0.0, 0.0, 0.0], "gained": [0, 0, 0]},
        {"lost": [0, 0], "gained": [0, 0]},
    ],
)
def test_changes_that_do_not_add_up_are_refused(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lie(side: ClientSide) -> Reply:
        state = {"right": torch.tensor([5, 0, 0]), "samples": torch.tensor([side.samples, 0, 0])}
        state |= {name: torch.tensor(values) for name, values in changes.items()}
        return Reply(state=state, gradient_samples=0, samples=side.samples)

    monkeypatch.setattr(gates, "CountRight", lambda _before: lie)
    assert gates.tally(engine(), (1, 2), constant(0)).left_out == {1: "malformed", 2: "malformed"}


def test_margins_are_checked() -> None:
    for wrong in ({"overall": -0.1}, {"per_class": 1.1}, {"level": 1.0}, {"min_samples": 0}):
        with pytest.raises(ValidationError, match=min(wrong)):
            Margins.model_validate(wrong)
