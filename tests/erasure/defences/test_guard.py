from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from secede import state as states
from secede.erasure import canonical_json
from secede.erasure.defences.fingerprints import Fingerprints
from secede.erasure.defences.guard import Guard, UpdateTrace
from secede.errors import ConfigError, GuardError
from secede.federation.engine import OwnState
from secede.seeding import seeded
from secede.state import State


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


def fresh(number: int) -> nn.Module:
    with seeded(0, "fresh", number):
        return network()


GLOBAL = states.of(fresh(100))
OWN = states.mean([GLOBAL, states.of(fresh(101))], [9, 1])
REFERENCE = states.reference(GLOBAL, OWN, weight=0.25)
MOVABLE = [name for name, _ in network().named_parameters()]


def guard(*, hidden: bool = False, radius: float | None = None, **limits: Any) -> Guard:
    last = None if hidden else OwnState(OWN, 0.25)
    return Guard(
        global_state=GLOBAL,
        fresh_model=fresh,
        last=last,
        radius=radius,
        **limits,
    )


def moved(state: State, distance: float, seed: int = 0) -> dict[str, Tensor]:
    """Return `state` with its parameters moved by `distance` in all."""
    draw = torch.Generator().manual_seed(seed)
    noise = {
        name: torch.randn(value.shape, generator=draw)
        if name in MOVABLE
        else torch.zeros_like(value)
        for name, value in state.items()
    }
    return states.shifted(state, noise, distance / states.norm(noise))


def test_an_honest_state_passes_unchanged_with_a_report_for_the_ledger() -> None:
    returned = moved(REFERENCE, 0.5)
    safe, report = guard().check(returned)
    assert states.digest(safe) == states.digest(returned) == report.digest
    assert report.centre == "reference"
    assert report.distance == pytest.approx(0.5, rel=1e-4)
    assert report.projections == report.restored == 0
    assert report.max_distance == pytest.approx(1.25 * report.unit)
    assert json.loads(canonical_json.to_canonical(report.model_dump())) == report.model_dump()


def test_the_unit_is_a_third_of_the_mean_distance_to_ten_fresh_models() -> None:
    def distance(number: int) -> float:
        there = dict(fresh(number).named_parameters())
        return math.sqrt(
            sum(float(((there[n] - REFERENCE[n]) ** 2).detach().sum()) for n in MOVABLE)
        )

    expected = sum(distance(number) for number in range(1, 11)) / 30
    assert guard().check(moved(REFERENCE, 0.5))[1].unit == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("hidden", [False, True])
def test_a_state_too_far_off_is_refused(hidden: bool) -> None:
    centre = GLOBAL if hidden else REFERENCE
    limit = guard(hidden=hidden).check(moved(centre, 0.5))[1].max_distance
    guard(hidden=hidden).check(moved(centre, 0.99 * limit))
    words = "the global model" if hidden else "the reference"
    with pytest.raises(GuardError, match=f"from {words}, expected at most"):
        guard(hidden=hidden).check(moved(centre, 1.01 * limit))


@pytest.mark.parametrize("size", [1e30, -1e30, 1e38])
def test_a_state_beyond_all_numbers_is_refused(size: float) -> None:
    with pytest.raises(GuardError, match="expected at most"):
        guard().check({**REFERENCE, "0.weight": torch.full((6, 4), size)})


def test_float64_values_whose_squares_overflow_are_refused() -> None:
    state = {"weight": torch.ones(1, 1, dtype=torch.float64)}
    narrow = Guard(
        global_state=state, fresh_model=lambda number: nn.Linear(1, 1, bias=False).double()
    )
    with pytest.raises(GuardError, match="is inf from the global model"):
        narrow.check({"weight": torch.full((1, 1), 1e300, dtype=torch.float64)})


def test_exact_copies_are_named() -> None:
    for known, words in (
        (GLOBAL, "is the global model"),
        (REFERENCE, "is the reference"),
        (OWN, "is the leaver's last update"),
    ):
        with pytest.raises(GuardError, match=f"{words}: nothing was unlearnt"):
            guard(min_line_distance=0).check(known)


def test_near_copies_are_refused() -> None:
    for known in (GLOBAL, REFERENCE, OWN, states.mean([GLOBAL, OWN], [1, 3])):
        with pytest.raises(GuardError, match="nothing was unlearnt"):
            guard().check(moved(known, 1e-5))


def test_under_secure_aggregation_only_the_global_model_is_known() -> None:
    with pytest.raises(GuardError, match="from the global model, expected at least"):
        guard(hidden=True).check(moved(GLOBAL, 1e-4))
    _, report = guard(hidden=True).check(REFERENCE)
    assert report.centre == "global"
    assert report.distance_to_line is None


def test_the_line_can_be_allowed_where_the_leaver_alone_held_its_classes() -> None:
    guard(min_line_distance=0, min_distance=0).check(moved(REFERENCE, 1e-6))


@pytest.mark.parametrize(
    ("known", "words"),
    [(GLOBAL, "the global model"), (REFERENCE, "the reference"), (OWN, "the leaver's last update")],
)
def test_a_neighbour_of_any_known_state_is_refused(known: State, words: str) -> None:
    unit = guard().check(moved(REFERENCE, 0.5))[1].unit
    with pytest.raises(GuardError, match=f"from {words}, expected at least"):
        guard().check(moved(known, 0.0008 * unit))
    guard().check(moved(known, 0.002 * unit))


def test_a_model_that_served_before_is_refused_by_digest_and_by_sketch(tmp_path: Path) -> None:
    old = states.of(fresh(7))
    near, far = moved(old, 0.001), moved(REFERENCE, 0.5)
    fingerprints = Fingerprints(tmp_path)
    fingerprints.save(states.digest(old), old, MOVABLE)
    wide: dict[str, Any] = {
        "max_distance": 99.0,
        "registered": [states.digest(old)],
        "fingerprints": fingerprints,
    }
    for returned in (old, near):
        with pytest.raises(GuardError, match="served before"):
            guard(**wide).check(returned)
    assert guard(**wide).check(far)[1].known == 1


def test_the_guards_ball_pulls_back_where_the_method_has_none() -> None:
    returned = moved(REFERENCE, 1.1 * guard().check(moved(REFERENCE, 0.5))[1].unit)
    safe, report = guard(ball=1.0).check(returned)
    assert (report.projections, report.ball, report.radius) == (1, "guard", report.unit)
    moved_by = states.distance({n: safe[n] for n in MOVABLE}, {n: REFERENCE[n] for n in MOVABLE})
    assert moved_by == pytest.approx(report.unit, rel=1e-4)
    own = guard(ball=1.0, radius=0.2).check(returned)[1]
    assert (own.projections, own.ball, own.radius) == (1, "method", 0.2)
    assert guard().check(returned)[1].ball is None


def test_the_distance_to_the_line_matches_the_hand_sum() -> None:
    # Global at (0, 0), own at (2, 0): the point (5, 3) is 3 from the line between them.
    def one(x: float, y: float) -> State:
        return {"weight": torch.tensor([[x, y]], dtype=torch.float32)}

    def far(number: int) -> nn.Module:
        model = nn.Linear(2, 1, bias=False)
        states.load_into(model, one(30.0, 30.0))
        return model

    plain = Guard(global_state=one(0, 0), fresh_model=far, last=OwnState(one(2, 0), 0.5))
    _, report = plain.check(one(5, 3))
    assert report.distance_to_line == pytest.approx(3)
    # The reference is (0 - 0.5 * 2) / 0.5 = -2: sqrt(7 ** 2 + 3 ** 2) away.
    assert report.distance == pytest.approx(math.sqrt(58))
    assert report.distance_to_global == pytest.approx(math.sqrt(34))


def test_a_state_outside_of_the_methods_ball_is_projected_again() -> None:
    safe, report = guard(radius=0.3).check(moved(REFERENCE, 0.5))
    assert report.projections == 1
    assert states.distance(safe, REFERENCE) == pytest.approx(0.3, rel=1e-4)
    assert report.digest == states.digest(safe)
    inside = moved(REFERENCE, 0.2)
    safe, report = guard(radius=0.3).check(inside)
    assert report.projections == 0
    assert states.digest(safe) == states.digest(inside)


def test_statistics_and_counters_come_from_the_server() -> None:
    returned = {
        **moved(REFERENCE, 0.5),
        "1.running_var": torch.full((6,), -1e6),
        "1.num_batches_tracked": torch.tensor(-5),
    }
    safe, report = guard().check(returned)
    assert report.restored == 2
    assert torch.equal(safe["1.running_var"], REFERENCE["1.running_var"])
    assert torch.equal(safe["1.num_batches_tracked"], GLOBAL["1.num_batches_tracked"])
    assert torch.equal(safe["0.weight"], returned["0.weight"])


def test_another_schema_and_values_that_are_not_finite_are_refused() -> None:
    returned = moved(REFERENCE, 0.5)
    with pytest.raises(GuardError, match=r"'0.weight' is torch.float32 \(4, 6\), expected"):
        guard().check({**returned, "0.weight": returned["0.weight"].t()})
    with pytest.raises(GuardError, match="unexpected"):
        guard().check({**returned, "more": torch.zeros(1)})
    with pytest.raises(GuardError, match=r"'0.bias' holds values that are not finite"):
        guard().check({**returned, "0.bias": torch.full((6,), math.nan)})


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match="radius must be positive"):
        guard(radius=0)
    with pytest.raises(ConfigError, match="min_line_distance must be at least 0"):
        guard(min_line_distance=-1)
    frozen = network().requires_grad_(False)
    with pytest.raises(ConfigError, match="no trainable parameters"):
        Guard(global_state=GLOBAL, fresh_model=lambda number: frozen).check(REFERENCE)


# Where the server has no update, but wrote down what it saw of it

HEAVY = 0.8  # the leaver's share: the reference lies four times as far off as its last update


def heavy(away: float, seed: int = 3) -> tuple[dict[str, Tensor], dict[str, Tensor], UpdateTrace]:
    """Return a leaver's update so far off, its reference, and what a server wrote down."""
    own = moved(GLOBAL, away, seed)
    trace = UpdateTrace(weight=HEAVY, distance=away, digest=states.digest(own))
    return own, states.reference(GLOBAL, own, weight=HEAVY), trace


def test_a_trace_tells_how_far_off_the_reference_lies() -> None:
    _, reference, trace = heavy(0.5)
    assert trace.to_reference == pytest.approx(2.0)  # 0.8 / 0.2 · 0.5
    assert trace.to_reference == pytest.approx(states.distance(reference, GLOBAL), rel=1e-4)
    assert UpdateTrace(weight=0.0, distance=3.0).to_reference == 0
    assert UpdateTrace(weight=1.0, distance=3.0).to_reference == 0  # nobody else: there is none
    assert UpdateTrace(weight=0.5).to_reference == 0  # not known


def test_an_honest_leaver_with_a_large_share_passes_where_a_trace_is_known() -> None:
    unit = guard(hidden=True).check(moved(GLOBAL, 0.5))[1].unit
    _, reference, trace = heavy(0.75 * unit)  # so that the reference is 3 units off
    honest = moved(reference, 0.5 * unit, seed=7)
    with pytest.raises(GuardError, match="from the global model, expected at most"):
        guard(hidden=True).check(honest)
    safe, report = guard(hidden=True, trace=trace, ball=1.0).check(honest)
    assert report.projections == 0  # to pull it back to the global model would undo it
    assert all(torch.equal(safe[name], honest[name]) for name in MOVABLE)
    assert report.centre == "global"
    assert report.to_reference == pytest.approx(3 * unit)
    assert report.max_distance == pytest.approx(4.25 * unit)


def test_with_a_trace_what_is_too_far_or_too_near_is_refused_all_the_same() -> None:
    unit = guard(hidden=True).check(moved(GLOBAL, 0.5))[1].unit
    own, reference, trace = heavy(0.75 * unit)
    watching = guard(hidden=True, trace=trace)
    with pytest.raises(GuardError, match="expected at most"):
        watching.check(moved(GLOBAL, 4.3 * unit))
    with pytest.raises(GuardError, match=r"expected at least .* the reference lies"):
        watching.check(moved(GLOBAL, 1.7 * unit))  # the reference is further than 1.25 units away
    with pytest.raises(GuardError, match="just as far as the reference"):
        watching.check(reference)
    _, _, near = heavy(0.2 * unit)
    own = heavy(0.2 * unit)[0]
    with pytest.raises(GuardError, match="is the leaver's last update"):
        guard(hidden=True, trace=near).check(own)


def test_a_trace_changes_nothing_where_the_reference_can_be_recomputed() -> None:
    returned = moved(REFERENCE, 0.5)
    trace = UpdateTrace(weight=HEAVY, distance=9.0, digest=states.digest(returned))
    assert guard(trace=trace).check(returned)[1] == guard().check(returned)[1]
