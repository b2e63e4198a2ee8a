from __future__ import annotations

from itertools import pairwise

import pytest

from harness.erasure import page_cases
from secede.erasure.receipts.canary_rows import CanaryRow, canary_rows
from secede.erasure.receipts.rank_figure import rank_figures


def rows() -> tuple[CanaryRow, ...]:
    return canary_rows(page_cases.no_trace_at_last().statement.predicate)


def test_bars_are_the_counts_before_and_at_the_last_look() -> None:
    (figure,) = rank_figures(rows())
    assert (figure.candidates, figure.count) == (10, 32)
    for kind, counts in (("before", page_cases.KNOWN), ("after", page_cases.GONE)):
        assert tuple(bar.count for bar in figure.bars if bar.kind == kind) == counts
    assert figure.label.startswith("Canaries at rank 1 to 10: before 19, 6, 3")


def test_heights_and_chance_have_one_scale() -> None:
    (figure,) = rank_figures(rows())
    highest, second = figure.bars[0], figure.bars[1]
    assert second.height / highest.height == pytest.approx(6 / 19)
    bottom = highest.y + highest.height
    assert (bottom - figure.chance_y) / highest.height == pytest.approx(3.2 / 19)
    assert all(bar.y >= 0 and bar.x + bar.width <= 360 for bar in figure.bars)


def test_bars_do_not_overlap() -> None:
    (figure,) = rank_figures(rows())
    bars = sorted(figure.bars, key=lambda bar: bar.x)
    for one, other in pairwise(bars):
        assert one.x + one.width <= other.x + 1e-9


def test_there_is_one_figure_for_each_number_of_candidates_and_few_names_for_many() -> None:
    (row, *_) = rows()
    two = row.__class__(**{**vars(row), "histograms": ((3, 1), (4,) + (0,) * 49)})
    small, large = rank_figures([two])
    assert (small.candidates, small.chance, small.counts_shown) == (2, 2, True)
    assert [rank for _, rank in large.ticks] == [1, 25, 50]
    assert not large.counts_shown


def test_without_a_reading_there_is_no_figure() -> None:
    assert rank_figures(()) == ()
