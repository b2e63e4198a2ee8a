from __future__ import annotations

from secede.verification.score import rounds_that_pay


def test_a_start_that_is_as_good_needs_no_round() -> None:
    assert rounds_that_pay(0.993, [0.992, 0.995]) == 0


def test_it_ends_once_the_old_accuracy_is_nearly_back() -> None:
    assert rounds_that_pay(0.98, [0.55, 0.97, 0.976, 0.981]) == 2


def test_a_model_that_never_comes_back_has_no_such_round() -> None:
    assert rounds_that_pay(0.98, [0.1, 0.1, 0.1]) is None
