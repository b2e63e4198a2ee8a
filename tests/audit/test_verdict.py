from __future__ import annotations

import json
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secede.audit.bounds import epsilon_lower_bound, upper_bound
from secede.audit.ranks import Ranks
from secede.audit.verdict import (
    NO_CANARIES,
    NO_READER,
    CanaryRule,
    Judgement,
    Reading,
    Verdict,
    judge,
    shown_p,
)
from secede.errors import ConfigError, DataError

RULE = CanaryRule()


def twins(wins: int, count: int = 20) -> Reading:
    return Reading(ranks=Ranks(((wins, count - wins),)), wins=wins, count=count)


# Of twenty twins 16 wins have p = 0.0059, 15 have p = 0.0207.
REMEMBERED, BARELY, MISSED, FORGOTTEN = twins(20), twins(16), twins(15), twins(11)


@pytest.mark.parametrize(
    ("before", "after", "absent", "verdict"),
    [
        (REMEMBERED, FORGOTTEN, None, "no trace found"),
        (BARELY, MISSED, None, "no trace found"),
        (REMEMBERED, twins(0), None, "no trace found"),
        (REMEMBERED, REMEMBERED, None, "trace found"),
        (REMEMBERED, BARELY, None, "trace found"),
        (MISSED, BARELY, None, "trace found"),  # a trace that is there needs no control
        (None, BARELY, NO_READER, "trace found"),
        (MISSED, FORGOTTEN, None, "undetermined"),
        (FORGOTTEN, FORGOTTEN, None, "undetermined"),
        (None, FORGOTTEN, NO_READER, "undetermined"),
        (REMEMBERED, None, NO_READER, "undetermined"),
        (None, None, NO_CANARIES, "undetermined"),
    ],
)
def test_the_verdict_follows_from_both_readings(
    before: Reading | None, after: Reading | None, absent: str | None, verdict: Verdict
) -> None:
    assert judge(before, after, RULE, absent).verdict == verdict


def test_no_trace_states_what_may_remain_beside_chance_and_before() -> None:
    judgement = judge(REMEMBERED, FORGOTTEN, CanaryRule(looks=4))
    bound = upper_bound(11, 20, 1 - 0.05 / 4)
    assert judgement == Judgement(
        verdict="no trace found",
        reason="The canaries showed before the erasure (p = 9.5e-07) and do not show after it "
        "(p = 0.41; threshold 0.01). With 95 % confidence over 4 looks, what was trained on beats "
        f"its opponent in at most {100 * bound:.0f} % of cases: chance is 50 %, before it was "
        "100 %.",
        p_before=2.0**-20,
        p_after=FORGOTTEN.p_value,
        p_after_corrected=1.0,
        win_share_before=1.0,
        win_share_after=0.55,
        win_upper_bound=bound,
        epsilon_lower_bound=0.0,
    )


def test_a_trace_states_mean_rank_threshold_and_corrected_p_value() -> None:
    ranks = Ranks.of([(1, 10)] * 9 + [(4, 10)])
    after = Reading(ranks=ranks, wins=9, count=10)
    judgement = judge(after, after, CanaryRule(looks=3))
    assert judgement.reason == (
        "After the erasure the model still tells the canaries: the 10 drawn ones have a mean rank "
        "of 1.30 where chance is 5.50 (p = 2.9e-08, = 8.6e-08 for 3 looks; threshold 0.01)."
    )
    assert judgement.p_after_corrected == 3 * after.p_value
    assert judgement.epsilon_lower_bound == epsilon_lower_bound(9, 10, level=1 - 0.05 / 3)
    assert "look" not in judge(after, after, RULE).reason


def test_undetermined_says_why() -> None:
    assert judge(None, None, RULE, NO_CANARIES).reason == f"Undetermined: {NO_CANARIES}."
    assert judge(REMEMBERED, None, RULE, NO_READER).p_before == 2.0**-20
    assert "no power" in judge(MISSED, FORGOTTEN, RULE).reason
    assert "p = 0.021; threshold 0.01" in judge(MISSED, FORGOTTEN, RULE).reason


@given(st.integers(0, 20), st.integers(0, 20), st.integers(1, 30))
def test_looking_often_never_changes_a_verdict_and_never_narrows_a_bound(
    before: int, after: int, looks: int
) -> None:
    once = judge(twins(before), twins(after), RULE)
    often = judge(twins(before), twins(after), CanaryRule(looks=looks))
    assert often.verdict == once.verdict
    assert once.win_upper_bound is not None
    assert often.win_upper_bound is not None
    assert often.win_upper_bound >= once.win_upper_bound
    assert often.p_after_corrected == min(1, looks * twins(after).p_value)


def test_a_stricter_level_finds_less() -> None:
    assert judge(REMEMBERED, BARELY, CanaryRule(level=0.005)).verdict == "no trace found"
    assert judge(REMEMBERED, MISSED, CanaryRule(level=0.05)).verdict == "trace found"


def test_a_p_value_at_the_level_is_not_below_it() -> None:
    rule = CanaryRule(level=BARELY.p_value)
    assert judge(REMEMBERED, BARELY, rule).verdict == "no trace found"
    assert judge(BARELY, FORGOTTEN, rule).verdict == "undetermined"


def test_with_two_candidates_wins_and_ranks_say_the_same() -> None:
    assert BARELY.win_p_value == BARELY.p_value == pytest.approx(6196 / 2**20)
    assert BARELY.win_share == 0.8


def test_rule_and_judgement_survive_json() -> None:
    rule = CanaryRule(level=0.02, bound_level=0.9, looks=7)
    assert CanaryRule(**json.loads(json.dumps(asdict(rule)))) == rule
    judgement = judge(REMEMBERED, FORGOTTEN, rule)
    assert Judgement(**json.loads(json.dumps(asdict(judgement)))) == judgement


def test_a_reading_whose_sums_disagree_is_refused() -> None:
    ranks = Ranks(((3, 2, 4),))
    for wins in (3, 4, 5):
        assert Reading(ranks=ranks, wins=wins, count=9).count == 9
    for wins in (2, 6):
        with pytest.raises(DataError, match=f"{wins} wins, where the ranks allow 3 to 5"):
            Reading(ranks=ranks, wins=wins, count=9)
    with pytest.raises(DataError, match="ranks of 9 canaries, expected 10"):
        Reading(ranks=ranks, wins=3, count=10)


def test_readings_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(DataError, match="other canaries"):
        judge(twins(20), twins(11, count=21), RULE)
    with pytest.raises(DataError, match="say why"):
        judge(REMEMBERED, None, RULE)
    with pytest.raises(DataError, match="a reason for none"):
        judge(REMEMBERED, FORGOTTEN, RULE, NO_READER)


@pytest.mark.parametrize(
    ("name", "value"), [("level", 0.0), ("level", 5), ("bound_level", 1.0), ("looks", 0)]
)
def test_a_rule_that_makes_no_sense_is_refused(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{name} is {value}"):
        CanaryRule(**{name: value})  # type: ignore[arg-type]


def test_a_p_value_too_small_for_a_float_is_shown_as_a_bound() -> None:
    assert shown_p(0.0) == "< 1e-300"
    assert shown_p(0.0312) == "= 0.031"
