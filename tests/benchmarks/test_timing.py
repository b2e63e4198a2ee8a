from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.timing import Timing, interleaved


class Clock:
    """Stands still until somebody works."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[str] = []

    def work(self, name: str, *seconds: float) -> Callable[[], None]:
        left = iter(seconds)

        def call() -> None:
            self.calls.append(name)
            self.now += next(left)

        return call

    def __call__(self) -> float:
        return self.now


def test_contenders_take_turns_after_one_untimed_call_each() -> None:
    clock = Clock()
    contenders = {"a": clock.work("a", 9, 1, 2, 3), "b": clock.work("b", 9, 4, 5, 6)}
    found = interleaved(contenders, 3, clock=clock)
    assert "".join(clock.calls) == "ab" + "ab" * 3
    assert found == {"a": Timing((1, 2, 3)), "b": Timing((4, 5, 6))}


def test_median_and_quartiles_are_those_of_the_repeats() -> None:
    timing = Timing((5, 1, 4, 2, 3))
    assert (timing.low, timing.median, timing.high) == (2, 3, 4)


def test_a_single_repeat_is_its_own_quartiles() -> None:
    assert (Timing((2,)).low, Timing((2,)).median, Timing((2,)).high) == (2, 2, 2)


def test_a_ratio_is_the_median_of_the_ratios_within_each_repeat() -> None:
    slow, fast = Timing((10, 2, 9)), Timing((1, 2, 3))
    assert fast.times_faster_than(slow) == 3  # of 10, 1 and 3; the medians' ratio is 4.5
    assert fast.times_faster_than(fast) == 1


def test_timings_add_up_repeat_by_repeat_and_scale() -> None:
    assert Timing((1, 2)) + Timing((3, 5)) * 2 == Timing((7, 12))


def test_timings_of_different_repeats_are_not_compared() -> None:
    with pytest.raises(ValueError, match="zip"):
        Timing((1, 2)).times_faster_than(Timing((1,)))
