import math
from collections.abc import Callable

import pytest

from secede.reports.figures.panels import (
    attack_panel,
    bar_panel,
    communication_panel,
    method_panel,
    rounds_panel,
)
from secede.reports.records.runs import Run

Make = Callable[..., Run]


def test_bars_stand_for_last_rounds_and_the_erased_for_the_asked_one(make_run: Make) -> None:
    run = make_run(override=lambda seed, arm, round: {"leaver_loss": float(round)})
    panel = bar_panel("MNIST", [run], "leaver_loss", 5)
    assert panel.unit == "loss"
    bars = {arm: value.mean for arm, value in panel.groups[0].bars}
    assert bars == {"fedavg": 20, "retrain": 20, "erased": 5}


def test_fewer_rounds_than_asked_give_the_last(make_run: Make) -> None:
    run = make_run(post_rounds=3, override=lambda seed, arm, round: {"leaver_loss": float(round)})
    bars = dict(bar_panel("MNIST", [run], "leaver_loss", 5).groups[0].bars)
    assert bars["erased"].mean == 3


def test_numbers_of_clients_stand_side_by_side(make_run: Make) -> None:
    runs = [make_run(clients=5, seeds=(0,)), make_run(clients=10, seeds=(0,))]
    panel = bar_panel("MNIST", runs, "attack_success", 1)
    assert [group.label for group in panel.groups] == ["N = 5", "N = 10"]
    assert panel.arms == ("fedavg", "retrain", "erased")


def test_an_attacks_advantage_has_an_interval_on_every_arm_that_was_attacked(
    make_run: Make,
) -> None:
    panel = attack_panel("MNIST", make_run(again=True), "yeom", 2)
    assert [dot.label for dot in panel.dots] == [
        "FedAvg",
        "Retrained",
        "Retrained again",
        "Projected ascent",
    ]
    # 0.78 - (1 - 0.42) and 0.31 - (1 - 0.7), the same in every seed.
    means = [dot.value.mean for dot in panel.dots]
    assert means == pytest.approx([0.20, 0.01, 0.01, 0.01])
    assert all(dot.value.interval is not None for dot in panel.dots)
    assert "FedAvg: +20.0 points." in panel.alt


def test_costs_run_against_the_best_accuracy_so_far(make_run: Make) -> None:
    clean = {"retrain": [0.1, 0.9, 0.8, 0.95], "projected-ascent": [0.2, 0.94, 0.93]}
    run = make_run(rounds=3, post_rounds=2, fixed={"clean_accuracy": clean})
    panel = communication_panel("MNIST", run)
    retrained, erased = panel.lines
    assert [value.mean for value in retrained.values] == [0.1, 0.9, 0.9, 0.95]
    assert [value.mean for value in erased.values] == [0.2, 0.94, 0.94]
    assert erased.positions == pytest.approx((6.65348, 5 * 6.65348, 9 * 6.65348))
    assert panel.transposed
    # 2.2 times as wide as what separates the best from the first round, and at least 2.2 points.
    assert panel.window == pytest.approx((0.928 - 0.0011, 0.95 + 0.0011))


def test_a_wreck_still_shows_in_the_cost_window(make_run: Make) -> None:
    clean = {"retrain": [0.1, 0.9, 0.9, 0.95], "projected-ascent": [0.1, 0.1, 0.1]}
    run = make_run(rounds=3, post_rounds=2, fixed={"clean_accuracy": clean})
    low, high = communication_panel("MNIST", run).window
    assert low < 0.1 < 0.95 < high


def test_curves_hold_the_main_arms_and_fedavgs_level(make_run: Make) -> None:
    panel = rounds_panel("MNIST", make_run(), "attack_success")
    assert panel.arms == ("fedavg", "fine-tune", "reference", "retrain", "erased")
    assert [len(line.values) for line in panel.lines] == [11, 11, 21, 11]
    assert panel.window == (-0.02, 1.02)


def test_the_window_of_clean_accuracy_begins_a_little_below_the_first_round(
    make_run: Make,
) -> None:
    post = [0.2, 0.95, 0.97]
    clean = {
        "retrain": [0.1, 0.5, 0.9, 0.98],
        **dict.fromkeys(("fine-tune", "reference", "projected-ascent"), post),
    }
    run = make_run(rounds=3, post_rounds=2, fixed={"clean_accuracy": clean})
    assert rounds_panel("MNIST", run, "clean_accuracy").window == pytest.approx((0.796, 1.004))


@pytest.mark.parametrize("score", ["clean_accuracy", "leaver_loss"])
def test_a_run_without_post_training_still_has_a_window(make_run: Make, score: str) -> None:
    low, high = rounds_panel("MNIST", make_run(post_rounds=0), score).window
    assert low < high


def test_losses_that_are_not_finite_do_not_break_the_window(make_run: Make) -> None:
    run = make_run(override=lambda seed, arm, round: {"leaver_loss": float("inf")})
    assert rounds_panel("MNIST", run, "leaver_loss").window == pytest.approx((0.0, 1.1))


def test_curves_leave_out_methods_beyond_the_main_ones(make_run: Make) -> None:
    methods = ("second-choice", "projected-ascent", "weight-negation", "fine-tune")
    panel = rounds_panel("MNIST", make_run(seeds=(0,), methods=methods), "attack_success")
    assert panel.arms == ("fedavg", "fine-tune", "projected-ascent", "retrain", "erased")


def test_a_judged_ablation_is_drawn_once(make_run: Make) -> None:
    run = make_run(seeds=(0,), methods=("fine-tune", "reference"))
    assert rounds_panel("MNIST", run, "attack_success").arms == (
        "fedavg",
        "reference",
        "retrain",
        "erased",
    )


def test_methods_lie_where_their_use_and_their_probe_put_them(make_run: Make) -> None:
    methods = ("projected-ascent", "fine-tune", "orthogonal-descent")
    curves = {"retrain": [0.01] * 21, "orthogonal-descent": [0.1] * 11}
    use = {"retrain": [0.98] * 21, "projected-ascent": [0.97] * 11, "fine-tune": [0.99] * 11}
    use["orthogonal-descent"] = [0.5] * 11
    run = make_run(methods=methods, fixed={"attack_success": curves, "clean_accuracy": use})
    panel = method_panel("MNIST", run, 1)
    assert [mark.label for mark in panel.marks] == [
        "Projected ascent",
        "Fine-tuned",
        "Orthogonal descent",
    ]
    assert [mark.look for mark in panel.marks] == ["erased", "fine-tune", "other-1"]
    positions = [mark.position for mark in panel.marks]
    assert positions == pytest.approx([-1, 1, -48])
    assert panel.is_position_logarithmic
    assert panel.marks[2].value.mean == pytest.approx(0.09)
    assert panel.allowed == (-math.inf, 0.03)


def test_a_probe_other_than_a_backdoor_may_not_fall_far_either(make_run: Make) -> None:
    assert method_panel("MNIST", make_run(scenario="flipped"), 1).allowed == (-0.03, 0.03)
