from __future__ import annotations

from secede.waiting import FIRST_INTERVAL, LogAtIntervals, seconds_left


def test_a_wait_is_logged_at_growing_intervals() -> None:
    now, lines = [0.0], list[str]()
    log_wait = LogAtIntervals(lines.append, clock=lambda: now[0])
    for second in range(600):
        now[0] = float(second)
        log_wait(str(second))
    assert lines == ["0", "30", "90", "210", "450"]
    assert FIRST_INTERVAL == 30


def test_a_wait_looks_at_once_and_a_last_time_when_it_is_over() -> None:
    (left,) = seconds_left(0, pause=10)
    assert left <= 0
    values = list(seconds_left(0.05, pause=0.02))
    assert values == sorted(values, reverse=True)
    assert values[0] > 0 >= values[-1]
