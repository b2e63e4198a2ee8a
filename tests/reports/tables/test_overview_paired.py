from collections.abc import Callable

import pytest

from secede.reports.records.runs import Run
from secede.reports.tables.overview import further_table, nearer_table

Make = Callable[..., Run]


@pytest.fixture
def run(make_run: Make) -> Run:
    """No noise: after one round 1 point from retraining against 5, after the last 3 against 2."""
    probe = {"retrain": [0.01] * 5, "fine-tune": [0.9, 0.0, 0.04], "reference": [0.9, 0.06, 0.03]}
    return make_run(
        methods=("fine-tune", "reference"),
        rounds=4,
        post_rounds=2,
        fixed={"attack_success": probe},
    )


def test_nearer_is_counted_by_means_and_surely_by_paired_seeds(run: Run) -> None:
    assert nearer_table([run]).splitlines()[-1] == (
        "| Reference | 1 of 1 | 1 of 1 | 0 of 1 | 0 of 1 | 0 of 1 | 1 of 1 |"
    )


def test_how_much_further_is_told_with_an_interval(run: Run) -> None:
    heading, row = (further_table([run]).splitlines()[at] for at in (2, -1))
    assert heading == "|  | Fine-tuned | Reference |"
    assert row == f"| {run.config.title} | – | +4.0* (+4.0 to +4.0) → −1.0* (−1.0 to −1.0) |"


def test_one_seed_has_a_difference_and_no_interval(make_run: Make) -> None:
    probe = {"retrain": [0.01] * 5, "fine-tune": [0.9, 0.0], "reference": [0.9, 0.06]}
    run = make_run(
        methods=("fine-tune", "reference"),
        seeds=(0,),
        rounds=4,
        post_rounds=1,
        fixed={"attack_success": probe},
    )
    assert further_table([run]).splitlines()[-1].endswith("| – | +4.0 → +4.0 |")


def test_a_run_without_the_first_method_has_nothing_to_tell(run: Run, make_run: Make) -> None:
    other = make_run(methods=("reference",), rounds=4, post_rounds=2, scenario="flipped")
    assert further_table([run, other]).splitlines()[-1].endswith("| – | – |")
