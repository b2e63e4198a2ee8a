from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest

from secede.audit import benjamini_hochberg, holm
from secede.errors import DataError

Correct = Callable[[Sequence[float]], tuple[float, ...]]


def test_holm_multiplies_by_how_many_are_left() -> None:
    # By hand: 0.01 x 4, 0.03 x 3, then 0.04 x 2 = 0.08, raised to the 0.09 before it, and 0.5 x 1.
    assert holm([0.04, 0.01, 0.5, 0.03]) == pytest.approx([0.09, 0.04, 0.5, 0.09])


def test_benjamini_and_hochberg_divide_by_the_rank() -> None:
    # By hand, from the largest: 0.5, 0.04 x 4 / 3 = 0.0533, 0.03 x 2 lowered to that, 0.01 x 4.
    expected = [0.16 / 3, 0.04, 0.5, 0.16 / 3]
    assert benjamini_hochberg([0.04, 0.01, 0.5, 0.03]) == pytest.approx(expected)


@pytest.mark.parametrize("correct", [holm, benjamini_hochberg])
def test_one_question_is_left_as_it_is_and_none_has_no_answer(correct: Correct) -> None:
    assert correct([0.03]) == (0.03,)
    assert correct([]) == ()
    assert correct([0.0, 0.0]) == (0.0, 0.0)


def test_adjusted_values_stay_below_one() -> None:
    assert holm([0.6, 0.7]) == (1.0, 1.0)
    assert benjamini_hochberg([0.6, 0.7]) == pytest.approx((0.7, 0.7))


def test_holm_is_never_below_benjamini_and_hochberg() -> None:
    values = [((37 * place) % 101) / 101 for place in range(1, 60)]
    for strict, mild, raw in zip(holm(values), benjamini_hochberg(values), values, strict=True):
        assert strict >= mild >= raw


@pytest.mark.parametrize("wrong", [-0.1, 1.1, math.nan])
def test_what_is_no_p_value_is_refused(wrong: float) -> None:
    with pytest.raises(DataError, match="expected a number from 0 to 1"):
        holm([0.5, wrong])
