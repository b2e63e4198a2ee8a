from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from harness.synthetic_margins import synthetic
from secede.audit.ensembles.margins import ENSEMBLES, Ensembles
from secede.audit.ensembles.scores import (
    LEAVER_LOSS,
    SAMPLE_GROUPS,
    TEST_LOSS,
    AuditScores,
    leaver_losses,
    sample_groups,
    score,
)
from secede.errors import DataError


@pytest.fixture(scope="module")
def scores() -> AuditScores:
    return score(synthetic(10, pool=100, original=1.5))


def test_every_kind_has_every_score(scores: AuditScores) -> None:
    assert (scores.models, scores.samples) == (10, {"pool": 100, "retained": 30, "test": 40})
    for comparison in (scores.erased, scores.original, scores.again):
        asked = [(m.attack, m.samples) for m in comparison.membership]
        assert asked == [
            ("u-lira", "all"),
            ("u-lira", "most exposed"),
            ("rmia", "all"),
            ("rmia", "most exposed"),
        ]
        by_group = (
            comparison.told,
            comparison.energy,
            comparison.relative,
            comparison.klom,
            comparison.epsilon,
        )
        for found in by_group:
            assert tuple(each.samples for each in found) == SAMPLE_GROUPS
        names = [each.name for each in comparison.equivalence]
        assert names == [LEAVER_LOSS, TEST_LOSS, "clean accuracy"]
    assert len(scores.retrained) == 4


def test_the_control_shows_what_is_there_and_the_null_does_not(scores: AuditScores) -> None:
    original, again = scores.original, scores.again
    for membership in original.membership[:2]:
        assert membership.auc.above_retrained.low > 0
    assert original.membership[0].p_value == 1 / 200
    assert again.membership[0].auc.estimate.low < 0.5 < again.membership[0].auc.estimate.high
    assert original.klom[0].excess_mean.value > again.klom[0].excess_mean.value == 0
    assert original.relative[0].p_nearer_to_original < 0.05


def not_numbers(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [bad for each in value.values() for bad in not_numbers(each)]
    if isinstance(value, list):
        return [bad for each in value for bad in not_numbers(each)]
    return [] if value is None or type(value) in (int, float, str, bool) else [value]


def test_the_scores_are_ready_for_json(scores: AuditScores) -> None:
    found = scores.to_dict()
    assert not_numbers(found) == []
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["erased"]["membership"][0]["auc"]["estimate"].keys() == {"value", "low", "high"}


def test_a_seed_repeats_every_score_and_half_precision_is_enough(scores: AuditScores) -> None:
    ensembles = synthetic(10, pool=100, original=1.5)
    halves = {
        kind: {name: values.astype(np.float16) for name, values in ensembles.margins[kind].items()}
        for kind in ENSEMBLES
    }
    rough = score(replace(ensembles, margins=halves))  # type: ignore[arg-type]
    auc = rough.erased.membership[0].auc.estimate.value
    assert auc == pytest.approx(scores.erased.membership[0].auc.estimate.value, abs=0.01)
    assert score(ensembles).to_dict() == scores.to_dict()


def test_the_leavers_samples_and_those_held_out_are_the_pool() -> None:
    ensembles = synthetic(4)
    groups = {group.name: group for group in sample_groups(ensembles)}
    assert tuple(groups) == SAMPLE_GROUPS
    assert (groups["leaver"].mask == ~groups["held-out"].mask).all()
    assert groups["test"].mask.all()
    assert groups["retained"].margins["erased"].shape == (4, 30)


def test_losses_by_hand() -> None:
    ensembles = synthetic(2, pool=2, test=1)
    margins = {
        kind: {**ensembles.margins[kind], "pool": np.array([[0.0, 9.0], [2.0, -1.0]])}
        for kind in ENSEMBLES
    }
    member = np.array([[True, False], [True, True]])
    losses = leaver_losses(replace(ensembles, margins=margins, member=member))
    expected = [np.log(2), (np.log1p(np.exp(-2)) + np.log1p(np.exp(1))) / 2]
    assert losses[LEAVER_LOSS]["erased"] == pytest.approx(np.log(expected))


def broken(**changes: Any) -> Ensembles:
    return replace(synthetic(3, pool=6), **changes)


def test_what_cannot_be_scored_is_refused() -> None:
    ensembles = synthetic(3, pool=6)
    margins = {kind: dict(ensembles.margins[kind]) for kind in ENSEMBLES}
    margins["erased"]["test"] = margins["erased"]["test"] * np.inf
    with pytest.raises(DataError, match="erased on test are not finite"):
        score(broken(margins=margins))
    margins["erased"]["test"] = np.zeros((2, 40))
    with pytest.raises(DataError, match="2 models of erased on test, expected 3"):
        score(broken(margins=margins))
    with pytest.raises(DataError, match="deal a part to each"):
        score(broken(member=np.ones((3, 6), dtype=bool)))
    with pytest.raises(DataError, match=r"probe has .*'erased': 1.* expected 3 each"):
        score(broken(scalars={"probe": {kind: np.zeros(1) for kind in ENSEMBLES}}))
