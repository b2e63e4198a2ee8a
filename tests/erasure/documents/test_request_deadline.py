from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from secede.erasure.documents.request import days_left, due_date, months_after


def day(year: int, month: int, date: int) -> datetime:
    return datetime(year, month, date, 9, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("start", "months", "end"),
    [
        (day(2026, 1, 31), 1, day(2026, 2, 28)),
        (day(2028, 1, 31), 1, day(2028, 2, 29)),
        (day(2026, 1, 31), 3, day(2026, 4, 30)),
        (day(2026, 2, 28), 1, day(2026, 3, 28)),
        (day(2026, 8, 31), 1, day(2026, 9, 30)),
        (day(2026, 12, 31), 1, day(2027, 1, 31)),
        (day(2026, 11, 30), 3, day(2027, 2, 28)),
        (day(2026, 3, 5), 1, day(2026, 4, 5)),
    ],
)
def test_months_are_calendar_months(start: datetime, months: int, end: datetime) -> None:
    assert months_after(start, months) == end


def test_further_months_count_from_receipt() -> None:
    received = day(2026, 1, 31)
    assert due_date(received) == day(2026, 2, 28)
    assert due_date(received, 2) == day(2026, 4, 30)  # not 28 April


@settings(deadline=None)
@given(st.datetimes(datetime(1000, 1, 1), datetime(9000, 1, 1)), st.integers(0, 40))
def test_a_month_later_is_in_that_month(start: datetime, months: int) -> None:
    end = months_after(start, months)
    assert (end.year - start.year) * 12 + end.month - start.month == months
    assert end.day == start.day or (end + timedelta(days=1)).day == 1
    assert end.time() == start.time()


@pytest.mark.parametrize(
    ("left", "days"),
    [
        (timedelta(days=2), 2),
        (timedelta(days=2, seconds=-1), 2),
        (timedelta(hours=15), 1),
        (timedelta(seconds=1), 0),
        (timedelta(0), 0),
        (timedelta(seconds=-1), -1),
        (timedelta(days=-1), -1),
        (timedelta(days=-1, hours=-10), -2),
    ],
)
def test_days_left_go_by_date_and_are_negative_once_overdue(left: timedelta, days: int) -> None:
    now = day(2026, 5, 5)
    assert days_left(now + left, now) == days


def test_from_15_november_to_15_december_are_30_days_all_day_long() -> None:
    received = day(2026, 11, 15)
    for hours in (0, 1, 14):
        assert days_left(due_date(received), received + timedelta(hours=hours)) == 30
