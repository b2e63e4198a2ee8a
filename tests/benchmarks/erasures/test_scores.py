from __future__ import annotations

import pytest

from benchmarks.erasures.cells import Cell, federation
from benchmarks.erasures.scores import area, measure


def test_the_area_is_the_share_of_pairs_in_which_the_member_is_above() -> None:
    assert area([2, 3], [0, 1]) == 1
    assert area([0, 1], [2, 3]) == 0
    assert area([1, 1], [1]) == 0.5
    # Pairs: 1 > 0, 1 = 1, 1 < 2; 3 > all.
    assert area([1, 3], [0, 1, 2]) == pytest.approx((1 + 0.5 + 3) / 6)


def test_a_model_tells_no_member_when_it_is_its_own_reference() -> None:
    made = federation(Cell(data="digits", network="mlp", scenario="flipped", share=0.2, seed=0))
    state = made.engine.initial_state("fresh")
    scores, losses = measure(made, state, None)
    again, _ = measure(made, state, losses)
    assert scores == again
    assert scores.auc == 0.5
    assert scores.loss == pytest.approx(float(losses.members.mean()))
    assert scores.canary_p is not None
