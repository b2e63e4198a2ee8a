from __future__ import annotations

from secede.canaries.win_rates import WIN_RATES, win_rates


def test_what_was_measured_with_so_many_copies_is_returned_else_with_the_most_below() -> None:
    assert {each.copies for each in win_rates(3)} == {3}
    assert {each.network for each in win_rates(3)} == {"mlp", "small-cnn"}
    assert win_rates(2) != win_rates(3)
    assert {each.copies for each in win_rates(100)} == {max(each.copies for each in WIN_RATES)}


def test_the_rates_are_above_chance() -> None:
    assert all(0.5 < each.rate < 1 for each in WIN_RATES)
