import math

import pytest

from secede.reports.analysis.answers import (
    Reply,
    as_sentence,
    describe_round,
    join_replies,
    reply_within,
)
from secede.reports.analysis.estimates import Estimate


@pytest.mark.parametrize(
    ("low", "high", "reply"),
    [
        (-0.01, 0.02, Reply.YES),
        (-0.03, 0.03, Reply.YES),
        (0.031, 0.05, Reply.NO),
        (-0.05, -0.031, Reply.NO),
        (0.02, 0.04, Reply.UNDETERMINED),
        (-0.04, 0.04, Reply.UNDETERMINED),
    ],
)
def test_an_interval_is_within_outside_or_across(low: float, high: float, reply: Reply) -> None:
    assert reply_within(Estimate((low + high) / 2, low, high, 3, "seeds"), -0.03, 0.03) is reply


def test_without_an_interval_nothing_is_determined() -> None:
    assert reply_within(Estimate(0.0, None, None, 1, "none"), -1, 1) is Reply.UNDETERMINED


def test_a_margin_may_be_open_on_one_side() -> None:
    far_below = Estimate(-0.9, -0.95, -0.85, 3, "seeds")
    assert reply_within(far_below, -math.inf, 0.03) is Reply.YES


def test_any_no_decides_then_any_doubt() -> None:
    assert join_replies({Reply.YES, Reply.UNDETERMINED, Reply.NO}) is Reply.NO
    assert join_replies({Reply.YES, Reply.UNDETERMINED}) is Reply.UNDETERMINED
    assert join_replies({Reply.YES}) is Reply.YES


def test_sentences_begin_and_end_as_such() -> None:
    assert as_sentence("clean accuracy is 3 %") == "Clean accuracy is 3 %."
    assert describe_round(0) == "before post-training"
    assert describe_round(2) == "after 2 rounds of post-training"
