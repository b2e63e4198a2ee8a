from collections.abc import Callable

import pytest

from secede.reports.records.runs import Run
from secede.reports.tables.overview import (
    count_asked,
    further_table,
    nearer_table,
    pair_all,
)

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
        "| Reference | 1 of 1 | 1 (1, 1) of 1 | 0 of 1 | 0 of 1 | 0 of 1 | 1 (1, 1) of 1 |"
    )


def test_how_much_further_is_told_with_an_interval(run: Run) -> None:
    heading, row = (further_table([run]).splitlines()[at] for at in (2, -1))
    assert heading == "|  | Fine-tuned | Reference |"
    assert row == f"| {run.config.title} | – | +4.0*** (+4.0 to +4.0) → −1.0*** (−1.0 to −1.0) |"


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


def test_surely_is_corrected_for_how_often_it_is_asked(make_run: Make) -> None:
    """The four methods are 2 points further from retraining, with more and more noise."""
    noise = {"reference": 0.0, "second-choice": 0.001, "negated-update": 0.0075}
    methods = ("fine-tune", *noise, "weight-negation")
    away = {"fine-tune": 0.10, "weight-negation": 0.10, **dict.fromkeys(noise, 0.12)}

    def curves(seed: int, arm: str, round: int) -> dict[str, float]:
        wobble = noise.get(arm, 0.0) * (seed - 1)
        return {"attack_success": away.get(arm, 0.01) + wobble}

    run = make_run(methods=methods, rounds=3, post_rounds=1, override=curves)
    asked = [(0, other, "fine-tune", 1) for other in methods[1:]]
    answers = pair_all([run], asked)
    # t is endless, 2 sqrt(3) / 0.1 = 34.6 and 2 sqrt(3) / 0.75 = 4.62 with 2 degrees of freedom:
    # p = 0, 0.0008 and 0.0438. Three were asked, and the last has 0.0438 by both corrections;
    # weight negation ended as fine-tuning did, which asks nothing.
    assert [answer.level for answer in answers.values()] == [3, 3, 3, None]
    assert count_asked(answers) == 3
    # Asked beside three that find nothing, the last one's 0.0438 is not sure any more.
    quiet = {"orthogonal-descent": 1, "virtual-teacher": -1, "gradient-ascent": 2}

    def more(seed: int, arm: str, round: int) -> dict[str, float]:
        if arm in quiet:
            return {"attack_success": 0.10 + 0.01 * quiet[arm] * (seed - 1)}
        return curves(seed, arm, round)

    run = make_run(methods=(*methods, *quiet), rounds=3, post_rounds=1, override=more)
    answers = pair_all([run], [*asked, *((0, other, "fine-tune", 1) for other in quiet)])
    assert [answer.level for answer in answers.values()] == [3, 3, 1, None, 0, 0, 0]
    assert count_asked(answers) == 6
