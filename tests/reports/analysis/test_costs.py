from collections.abc import Callable

import pytest

from secede.reports.analysis.costs import (
    amount,
    compare_at_level,
    compare_at_round,
    cost_to_reach,
    largest_ratio,
)
from secede.reports.records.runs import Cost, Run

# Five clients and MNIST's model: one upload is 6.65348 MB, a round without the leaver four.
CLEAN = {
    "retrain": [0.1, 0.5, 0.9, 0.96, 0.98],
    "projected-ascent": [0.2, 0.95, 0.97],
}
ERASED = "projected-ascent"
UPLOAD = 6.65348


@pytest.fixture
def run(make_run: Callable[..., Run]) -> Run:
    return make_run(seeds=(0, 1), rounds=4, post_rounds=2, fixed={"clean_accuracy": CLEAN})


def test_megabytes_are_decimal() -> None:
    cost = Cost(3, 26_613_920, 1_000_000, 48_000, 1.5)
    assert amount(cost, "upload_mb") == pytest.approx(26.61392)
    assert amount(cost, "download_mb") == 1
    assert amount(cost, "rounds") == 3
    assert amount(cost, "gradient_samples") == 48_000


def test_reach_finds_the_first_round_at_or_above_the_level(run: Run) -> None:
    curve = run.seeds[0].curves["retrain"]
    for level, rounds in ((0.9, 2), (0.91, 3), (0.0, 0)):
        found = cost_to_reach(curve, level, "clean_accuracy")
        assert found is not None
        assert found.rounds == rounds
    assert cost_to_reach(curve, 0.99, "clean_accuracy") is None


def test_the_ratio_to_retraining_matches_the_hand_sum(run: Run) -> None:
    # Erased after 1 round: 1 + 4 uploads at 0.95; retraining has that in round 3: 12 uploads.
    comparison = compare_at_round(run, ERASED, 1)
    assert comparison.levels == (0.95, 0.95)
    spent = comparison.spent(comparison.method, "upload_mb")
    assert spent is not None
    assert spent.mean == pytest.approx(5 * UPLOAD)
    ratio = comparison.ratio("upload_mb")
    assert ratio.estimate is not None
    assert ratio.estimate.mean == pytest.approx(12 / 5)
    assert ratio.left_out == 0
    rounds = comparison.ratio("rounds").estimate
    assert rounds is not None
    assert rounds.mean == 3
    samples = comparison.ratio("gradient_samples").estimate
    assert samples is not None
    assert samples.mean == pytest.approx(3 * 48_000 / (48_000 + 12 * 1024))


def test_a_level_is_compared_at_its_first_rounds(run: Run) -> None:
    comparison = compare_at_level(run, ERASED, 0.96)
    assert [cost.rounds for cost in comparison.method if cost] == [2, 2]
    assert [cost.rounds for cost in comparison.retrained if cost] == [3, 3]


def test_a_round_costs_what_was_spent_by_then_even_if_an_earlier_one_was_better(
    make_run: Callable[..., Run],
) -> None:
    clean = {**CLEAN, "projected-ascent": [0.2, 0.97, 0.95]}
    run = make_run(seeds=(0,), rounds=4, post_rounds=2, fixed={"clean_accuracy": clean})
    assert [cost.rounds for cost in compare_at_round(run, ERASED, 2).method if cost] == [2]
    assert [cost.rounds for cost in compare_at_level(run, ERASED, 0.95).method if cost] == [1]


def test_seeds_that_never_reach_are_counted_and_bound_the_ratio(
    make_run: Callable[..., Run],
) -> None:
    def late(seed: int, arm: str, round: int) -> dict[str, float]:
        if arm == "retrain" and seed == 1:
            return {"clean_accuracy": 0.5}
        return {"clean_accuracy": CLEAN[arm][round]} if arm in CLEAN else {}

    run = make_run(seeds=(0, 1), rounds=4, post_rounds=2, override=late)
    comparison = compare_at_round(run, ERASED, 1)
    assert (comparison.method_never, comparison.retrained_never) == (0, 1)
    ratio = comparison.ratio("upload_mb")
    assert ratio.estimate is not None
    assert ratio.at_least is not None
    assert (ratio.estimate.seeds, ratio.left_out) == (1, 1)
    assert ratio.estimate.mean == pytest.approx(12 / 5)
    assert ratio.at_least.mean == pytest.approx((12 / 5 + 16 / 5) / 2)


def test_a_level_nobody_reaches_has_no_cost_and_no_ratio(run: Run) -> None:
    comparison = compare_at_level(run, ERASED, 0.995)
    assert comparison.spent(comparison.method, "rounds") is None
    ratio = comparison.ratio("upload_mb")
    assert (ratio.estimate, ratio.at_least, ratio.left_out) == (None, None, 2)


def test_a_start_that_costs_no_round_has_no_ratio_of_rounds(run: Run) -> None:
    comparison = compare_at_level(run, ERASED, 0.2)
    assert comparison.ratio("rounds").estimate is None
    uploads = comparison.ratio("upload_mb").estimate
    assert uploads is not None
    assert uploads.mean == pytest.approx(4)


def test_the_largest_ratio_is_found_with_its_round(run: Run) -> None:
    # Round 1: 12/5 = 2.4. Round 2 (0.97, retraining in round 4): 16/9.
    found = largest_ratio(run, ERASED)
    assert found is not None
    assert found[0] == 1
    assert found[1].mean == pytest.approx(2.4)


def test_there_is_no_largest_ratio_where_retraining_never_gets_there(
    make_run: Callable[..., Run],
) -> None:
    clean = {"retrain": [0.1] * 5, "projected-ascent": [0.2, 0.9, 0.9]}
    run = make_run(seeds=(0,), rounds=4, post_rounds=2, fixed={"clean_accuracy": clean})
    assert largest_ratio(run, ERASED) is None


def test_any_arm_is_compared_with_retraining_with_all_it_asked_for(
    make_run: Callable[..., Run],
) -> None:
    # Orthogonal descent asked for 20 uploads before its first round of four: 24 against 12.
    clean = {**CLEAN, "orthogonal-descent": [0.9, 0.95, 0.97]}
    methods = ("projected-ascent", "orthogonal-descent")
    run = make_run(rounds=4, post_rounds=2, methods=methods, fixed={"clean_accuracy": clean})
    comparison = compare_at_round(run, "orthogonal-descent", 1)
    assert comparison.label == "orthogonal descent's after 1 round"
    assert compare_at_round(run, ERASED, 1).label == "the erased model's after 1 round"
    assert [cost.rounds for cost in comparison.method if cost] == [21, 21, 21]
    ratio = comparison.ratio("upload_mb").estimate
    assert ratio is not None
    assert ratio.mean == pytest.approx(12 / 24)
