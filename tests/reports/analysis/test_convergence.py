from collections.abc import Callable

import pytest

from secede.reports.analysis.convergence import last_rise, not_converged
from secede.reports.records.runs import Run

Make = Callable[..., Run]


def trained(make_run: Make, *last: float, noise: float = 0.0) -> Run:
    """Ten rounds, of which the last three clean accuracies are given."""

    def curves(seed: int, arm: str, round: int) -> dict[str, float]:
        if arm not in ("fedavg", "retrain"):
            return {}
        clean = ([0.1] * 8 + [*last])[round] + (noise * (seed - 1) if round == 10 else 0.0)
        return {"clean_accuracy": clean}

    return make_run(rounds=10, post_rounds=2, override=curves)


def test_what_rose_over_the_last_fifth_of_the_rounds_is_told(make_run: Make) -> None:
    run = trained(make_run, 0.50, 0.52, 0.53)
    assert last_rise(run, "fedavg").mean == pytest.approx(0.03)
    assert not_converged(run).startswith(
        "Training had not converged: clean accuracy was still rising (before erasing, it rose by "
        "+3.0 points in its last 2 rounds; retrained, it rose by +3.0 points in"
    )


@pytest.mark.parametrize("last", [0.505, 0.50, 0.45])
def test_half_a_point_more_is_an_end(make_run: Make, last: float) -> None:
    assert not_converged(trained(make_run, 0.50, 0.50, last)) == ""


def test_a_rise_that_the_seeds_do_not_agree_on_is_not_sure(make_run: Make) -> None:
    assert not_converged(trained(make_run, 0.50, 0.52, 0.53, noise=0.1)) == ""


def test_one_seed_is_judged_by_its_test_set(make_run: Make) -> None:
    rises = {
        rise: make_run(
            seeds=(0,),
            rounds=5,
            post_rounds=2,
            fixed={"clean_accuracy": {"fedavg": [0.5] * 5 + [0.5 + rise], "retrain": [0.9] * 6}},
        )
        for rise in (0.012, 0.05)
    }
    # Newcombe's interval of 10,000 images each reaches 1.4 points to both sides.
    assert not_converged(rises[0.012]) == ""
    assert "its last round" in not_converged(rises[0.05])
