from __future__ import annotations

from secede.unlearning.worth import rounds_that_pay


def test_a_start_that_is_as_good_needs_no_round() -> None:
    assert rounds_that_pay(0.993, [0.992, 0.995]) == 0


def test_it_ends_once_the_old_accuracy_is_nearly_back() -> None:
    assert rounds_that_pay(0.98, [0.55, 0.97, 0.976, 0.981]) == 2


def test_it_ends_when_a_round_brings_nothing_more() -> None:
    assert rounds_that_pay(0.98, [0.55, 0.93, 0.9305, 0.95]) == 2


def test_without_either_all_rounds_were_worth_it() -> None:
    assert rounds_that_pay(0.98, [0.1, 0.3, 0.5]) == 2
