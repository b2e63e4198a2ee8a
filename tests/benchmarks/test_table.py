from __future__ import annotations

from benchmarks.table import brief, milliseconds, quartiles, significant, table, times
from benchmarks.timing import Timing


def test_numbers_stand_to_the_right_and_short_rows_are_filled() -> None:
    drawn = table(("", "ms", "ratio"), [["a", "12", "1.00×"], ["b", "refused: no"]])
    assert drawn.splitlines() == [
        "|  | ms | ratio |",
        "| --- | --: | --: |",
        "| a | 12 | 1.00× |",
        "| b | refused: no |  |",
    ]


def test_numbers_keep_three_digits_or_all_before_the_point() -> None:
    assert [significant(value) for value in (0.01234, 1.234, 99.44, 1234.5)] == [
        "0.0123",
        "1.23",
        "99.4",
        "1234",
    ]


def test_seconds_are_shown_as_milliseconds() -> None:
    timing = Timing((0.001, 0.002, 0.003))
    assert milliseconds(timing) == "2"
    assert quartiles(timing) == "1.5–2.5"
    assert brief({"a": timing}) == "a 2 ms"
    assert times(2) == "2.00×"
