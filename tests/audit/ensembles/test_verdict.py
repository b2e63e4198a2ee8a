from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from harness.synthetic_margins import synthetic
from secede.audit.ensembles.scores import AuditScores, Comparison, score
from secede.audit.ensembles.verdict import Answer, fewest_models, judge_ensembles

NOTHING, CLEAR = (0.4, 0.5, 0.6, 0.7), (0.001, 0.2, 0.2, 0.2)
# Holm multiplies the smallest of four by 4: 0.013 is not enough at 0.05.
NEARLY = (0.013, 0.5, 0.5, 0.5)


@pytest.fixture(scope="module")
def scores() -> AuditScores:
    return score(synthetic(10, pool=100, original=1.5))


def with_p(found: Comparison, samples: Sequence[float], visible: Sequence[float]) -> Comparison:
    """Return the scores with these p values: of the attacks, and of told and energy on two."""
    told, energy = found.told, found.energy
    return replace(
        found,
        membership=tuple(
            replace(m, p_value=p) for m, p in zip(found.membership, samples, strict=True)
        ),
        told=(
            *(replace(t, p_value=p) for t, p in zip(told, visible[:2], strict=False)),
            *(replace(t, p_value=0.0) for t in told[2:]),
        ),
        energy=(
            *(replace(e, p_value=p) for e, p in zip(energy, visible[2:], strict=False)),
            *(replace(e, p_value=0.0) for e in energy[2:]),
        ),
    )


@pytest.mark.parametrize(
    ("samples", "visible", "control", "answers"),
    [
        (NOTHING, NOTHING, (CLEAR, CLEAR), ("indistinguishable", "indistinguishable")),
        (NEARLY, NEARLY, (CLEAR, CLEAR), ("indistinguishable", "indistinguishable")),
        (CLEAR, NOTHING, (CLEAR, CLEAR), ("distinguishable", "indistinguishable")),
        (NOTHING, CLEAR, (CLEAR, CLEAR), ("indistinguishable", "distinguishable")),
        (NOTHING, NOTHING, (NOTHING, CLEAR), ("undetermined", "indistinguishable")),
        (NOTHING, NOTHING, (CLEAR, NEARLY), ("indistinguishable", "undetermined")),
        (CLEAR, CLEAR, (NOTHING, NOTHING), ("distinguishable", "distinguishable")),
        (NOTHING, CLEAR, (NOTHING, NOTHING), ("undetermined", "distinguishable")),
    ],
)
def test_each_line_follows_from_its_tests_and_the_control(
    scores: AuditScores,
    samples: Sequence[float],
    visible: Sequence[float],
    control: tuple[Sequence[float], Sequence[float]],
    answers: tuple[Answer, Answer],
) -> None:
    verdict = judge_ensembles(
        replace(
            scores,
            erased=with_p(scores.erased, samples, visible),
            original=with_p(scores.original, *control),
        )
    )
    assert (verdict.samples.answer, verdict.visibility.answer) == answers
    order = ("distinguishable", "undetermined", "indistinguishable")
    assert verdict.answer == min(answers, key=order.index)
    assert verdict.headline.lower().startswith(verdict.answer)


def test_a_finding_is_named_with_its_corrected_p_value(scores: AuditScores) -> None:
    erased = with_p(scores.erased, NOTHING, (0.5, 0.5, 0.001, 0.004))
    verdict = judge_ensembles(replace(scores, erased=erased))
    assert verdict.visibility.by == (
        "energy distance, leaver samples",
        "energy distance, held-out samples",
    )
    assert "energy distance, held-out samples (p = 0.012)" in verdict.visibility.reason
    assert verdict.headline.endswith("forgotten as far as can be seen, the erasure is visible.")
    assert json.loads(json.dumps(verdict.to_dict()))["told_by"]["samples"] == []


def test_no_line_denies_without_saying_what_it_could_have_seen(scores: AuditScores) -> None:
    erased = with_p(scores.erased, NOTHING, NOTHING)
    control = with_p(scores.original, CLEAR, CLEAR)
    verdict = judge_ensembles(replace(scores, erased=erased, original=control))
    effects = verdict.samples.smallest_effects
    assert f"U-LiRA, all samples: {effects['U-LiRA, all samples']:.3f}" in verdict.samples.reason
    assert all(effect is not None and 0.5 < effect < 1 for effect in effects.values())
    assert "the smallest accuracy seen in 80% of such audits" in verdict.visibility.reason


def test_too_few_models_deny_nothing_and_still_find(scores: AuditScores) -> None:
    assert 0.05 / 4 > 2.0 ** -(fewest_models() - 1) > 0.05 / 4 / 2
    few = replace(scores, models=7, original=with_p(scores.original, CLEAR, CLEAR))
    silent = judge_ensembles(replace(few, erased=with_p(few.erased, NOTHING, NOTHING)))
    assert silent.answer == "undetermined"
    assert "7 models, expected 8 or more" in silent.headline
    found = judge_ensembles(replace(few, erased=with_p(few.erased, CLEAR, NOTHING)))
    assert found.answer == "distinguishable"


def test_by_the_same_rule_the_original_is_told_and_retraining_again_is_not(
    scores: AuditScores,
) -> None:
    original = judge_ensembles(scores, "original")
    assert original.samples.answer == original.visibility.answer == "distinguishable"
    assert judge_ensembles(scores, "retrained-again").answer == "indistinguishable"
    assert judge_ensembles(scores).answer == "indistinguishable"


def test_memory_and_an_erasure_that_shows_are_told_apart() -> None:
    visible = judge_ensembles(score(synthetic(8, original=2, shift=-2)))
    assert visible.samples.answer == "indistinguishable"
    assert visible.visibility.answer == "distinguishable"
    remembered = judge_ensembles(score(synthetic(8, remembered=1.5)))
    assert remembered.samples.answer == "distinguishable"
    assert "samples are remembered" in remembered.headline


def test_without_memory_in_the_original_nothing_is_denied() -> None:
    verdict = judge_ensembles(score(synthetic(8, original=0, seed=1)))
    assert verdict.answer == "undetermined"
    assert "the test has no power here" in verdict.samples.reason
