from __future__ import annotations

from typing import Any

import pytest

from secede.audit import Ranks, Reading
from secede.erasure import Margins
from secede.errors import DataError
from secede.experiments.rehearsal.rule import (
    GATE_MARGIN,
    RETRAIN,
    RULE,
    Choice,
    Measured,
    Scores,
    choose,
    mean_of,
    reading_of,
)

SEEN = Reading(ranks=Ranks(((20, 0),)), wins=20, count=20)  # p = 2^-20
UNSEEN = Reading(ranks=Ranks(((10, 10),)), wins=10, count=20)


def scores(
    clean: float = 0.95, uploads: float = 10.0, canaries: Reading = UNSEEN, **others: float
) -> Scores:
    rest = {"leaver_loss": 1.0, "seconds": 1.0, **others}
    return Scores(clean_accuracy=clean, upload_bytes=uploads, canaries=canaries, **rest)


def decided(
    candidates: dict[str, Scores], *, before: Scores | None = None, **changes: Any
) -> Choice:
    measured = Measured(
        before=before or scores(0.96, canaries=SEEN),
        retrained=scores(),
        again=scores(),
        accuracy_spread=0.01,
        loss_spread=0.1,
        candidates=candidates,
        **changes,
    )
    return choose(measured)


def test_the_one_that_loses_least_is_named() -> None:
    choice = decided({"a": scores(0.92, 1), "b": scores(0.95, 9)})
    assert choice.method == "b"
    assert "of 2 that pass it is the best by more than 1.0 points" in choice.reason
    assert "95.0 % is 1.0 points below the model before" in choice.reason


def test_within_the_spread_of_two_retrainings_the_fewest_uploads_decide() -> None:
    best, near, far = scores(0.95, 9), scores(0.9401, 1), scores(0.9399, 0)
    choice = decided({"best": best, "near": near, "far": far})
    assert choice.method == "near"
    assert "of 3 that pass, 2 are within 1.0 points of the best" in choice.reason


def test_with_as_many_uploads_the_more_accurate_is_named() -> None:
    assert decided({"a": scores(0.945, 3), "b": scores(0.95, 3)}).method == "b"


def test_a_method_that_leaves_a_trace_is_not_named_however_good_it_is() -> None:
    choice = decided({"traced": scores(0.99, 0, SEEN), "clean": scores(0.93)})
    assert choice.method == "clean"
    assert "no other method passes" in choice.reason
    verdicts = {name: judged.verdict for name, judged in choice.judgements.items()}
    assert verdicts == {"traced": "trace found", "clean": "no trace found"}


def test_if_all_leave_a_trace_or_broke_it_is_retraining() -> None:
    choice = decided({"a": scores(canaries=SEEN)}, failed={"b": "it diverged"})
    assert (choice.method, choice.reason) == (
        RETRAIN,
        "retrain: after none of 2 methods the canaries are gone",
    )
    assert decided({}).method == RETRAIN


def test_a_method_that_the_gate_would_refuse_is_not_named() -> None:
    choice = decided({"wrecked": scores(0.9)})
    assert choice.method == RETRAIN
    assert "lose more than 5 points" in choice.reason
    assert decided({"wrecked": scores(0.9), "costly": scores(0.911, 99)}).method == "costly"
    assert Margins().overall == GATE_MARGIN


def test_without_power_nothing_is_named() -> None:
    choice = decided({"a": scores()}, before=scores(0.96, canaries=UNSEEN))
    assert choice.method is None
    assert "no method is named" in choice.reason
    assert choice.judgements["a"].verdict == "undetermined"


def test_all_candidates_count_as_looks() -> None:
    alone, both = decided({"a": scores()}), decided({"a": scores(), "b": scores()})
    one, two = (choice.judgements["a"].win_upper_bound for choice in (alone, both))
    assert one is not None
    assert two is not None
    assert one < two


def test_seeds_are_averaged_and_their_canaries_join() -> None:
    one, two = scores(0.9, 10, SEEN, seconds=1), scores(0.8, 20, UNSEEN, seconds=3)
    mean = mean_of([one, two])
    assert mean.clean_accuracy == pytest.approx(0.85)
    assert (mean.upload_bytes, mean.seconds) == (15, 2)
    assert mean.canaries == Reading(ranks=Ranks(((30, 10),)), wins=30, count=40)


def test_a_record_is_a_reading_and_none_is_refused() -> None:
    assert reading_of({"ranks": [[10, 10]], "wins": 10}) == UNSEEN
    with pytest.raises(DataError, match="ranks of no canary"):
        reading_of(None)


def test_the_rule_states_its_numbers() -> None:
    assert "p < 0.01" in RULE
    assert "more than 5 points" in RULE
    assert "no proof" in RULE
