from __future__ import annotations

from harness.erasure.questions import NOW, later
from secede.erasure.workflow.session import MonotonicClock


def test_it_says_what_the_clock_says_and_never_goes_back() -> None:
    said = iter([NOW, later(seconds=5), later(seconds=2), later(seconds=9)])
    clock = MonotonicClock(lambda: next(said))
    assert [clock() for _ in range(4)] == [NOW, *(later(seconds=s) for s in (5, 5, 9))]


def test_it_is_never_before_what_was_written_down() -> None:
    clock = MonotonicClock(lambda: NOW)
    clock.not_before(None, later(days=2), later(days=1))
    assert clock() == later(days=2)
