from __future__ import annotations

import pytest

from harness.erasure import page_cases, papers
from secede.audit import CanaryRule, Ranks, Reading, judge
from secede.erasure.receipts.canary_rows import CanaryRow, canary_rows
from secede.erasure.receipts.verify import Verified


def rows(verified: Verified) -> tuple[CanaryRow, ...]:
    return canary_rows(verified.statement.predicate)


def test_there_is_a_row_for_each_reading_the_old_model_first() -> None:
    found = rows(page_cases.no_trace_at_last())
    assert [row.when for row in found] == [
        "before the erasure",
        "second-choice, after round 1",
        "second-choice, after round 5",
        "weight-negation, after round 2",
    ]
    assert [row.decides for row in found] == [False, False, False, True]
    assert [row.model for row in found][::3] == [papers.BEFORE, papers.AFTER]
    assert all(row.signed for row in found)


def test_a_row_has_the_numbers_of_the_rule() -> None:
    before, after = rows(page_cases.no_trace())
    judged = judge(
        Reading(ranks=Ranks((page_cases.KNOWN,)), wins=29, count=32),
        Reading(ranks=Ranks((page_cases.GONE,)), wins=15, count=32),
        CanaryRule(looks=7),
    )
    assert (before.p_value, after.p_value) == (judged.p_before, judged.p_after)
    assert (before.win_bound, after.win_bound) == (None, judged.win_upper_bound)
    assert after.chance_mean == 5.5
    # 19 · 1 + 6 · 2 + 3 · 3 + 2 · 4 + 5 + 6 over 32.
    assert before.mean_rank == pytest.approx(59 / 32)


def test_no_reading_gives_no_row_and_one_in_between_decides_nothing() -> None:
    assert rows(page_cases.not_planted()) == ()
    part = page_cases.canaries(page_cases.LOOKS[0]).model_copy(update={"absent": "it went away"})
    _, look = rows(page_cases.case("undetermined", part))
    assert not look.decides
