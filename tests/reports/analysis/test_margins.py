import math
from collections.abc import Callable

import pytest

from secede.reports.analysis.margins import explain_margins, margin
from secede.reports.records.runs import Run

Make = Callable[..., Run]


def retrained_twice(make_run: Make, gaps: tuple[float, ...], *, factor: float = 1.0) -> Run:
    """Seeds whose second retraining has so much more attack success, and so many times the loss."""

    def curves(seed: int, arm: str, round: int) -> dict[str, float]:
        more = gaps[seed] if arm == "retrain-again" else 0.0
        loss = factor if arm == "retrain-again" else 1.0
        return {"attack_success": 0.2 + more, "leaver_loss": loss}

    return make_run(seeds=range(len(gaps)), rounds=3, post_rounds=2, again=True, override=curves)


def test_twice_the_root_mean_square_of_what_two_retrainings_differ_by_is_allowed(
    make_run: Make,
) -> None:
    # By hand: the squares 1, 9 and 25 have a mean of 11.67, whose root is 3.416 points.
    found = margin(retrained_twice(make_run, (0.01, -0.03, 0.05)), "attack_success")
    assert found.size == pytest.approx(2 * 0.0342)  # of the digits that are printed
    assert (found.words, found.spread_words) == ("6.84 are allowed", "3.42 points")


def test_where_two_retrainings_hardly_differ_a_point_is_allowed(make_run: Make) -> None:
    found = margin(retrained_twice(make_run, (0.001, -0.001, 0.001)), "attack_success")
    assert (found.size, found.words) == (0.01, "1 is allowed")


@pytest.mark.parametrize(("factor", "allowed"), [(1.05, 1.25), (1.3, 1.69), (1 / 1.3, 1.69)])
def test_a_loss_may_be_a_quarter_more_or_twice_the_null_in_logarithms(
    make_run: Make, factor: float, allowed: float
) -> None:
    found = margin(retrained_twice(make_run, (0.0,) * 3, factor=factor), "leaver_loss")
    assert math.exp(found.size) == pytest.approx(allowed)
    assert found.words == f"{1 / allowed:.2f} to {allowed:.2f} is allowed"


@pytest.mark.parametrize(
    ("run", "why"),
    [
        ({"again": False}, "this run has no second retraining to take them from"),
        ({"again": True, "seeds": (0, 1)}, "2 seeds tell too little of what two retrainings"),
        ({"again": True, "seeds": (0,)}, "1 seed tells too little of what two retrainings"),
    ],
)
def test_without_a_null_of_three_seeds_margins_are_fixed_and_it_says_so(
    make_run: Make, run: dict[str, object], why: str
) -> None:
    made = make_run(rounds=3, post_rounds=2, **run)
    assert margin(made, "attack_success").size == 0.03
    assert margin(made, "leaver_loss").size == math.log(1.25)
    assert why in explain_margins(made, "attack_success")


def test_a_null_that_is_not_finite_leaves_the_margin_fixed(make_run: Make) -> None:
    found = margin(retrained_twice(make_run, (0.0,) * 3, factor=math.inf), "leaver_loss")
    assert (found.spread, found.size) == (None, math.log(1.25))


def test_the_null_is_told_in_both_units(make_run: Make) -> None:
    text = explain_margins(retrained_twice(make_run, (0.01,) * 3, factor=1.3), "attack_success")
    assert text.startswith("Two retrainings differ by 1 point here, and by a factor of 1.30 in")
    assert "2 times as much is allowed, and never less than 1 point or a factor of 1.25" in text
