"""Can the erased model be told apart from a retrained one? It may, though its leaver is forgotten.

Every score and attack is asked, paired by seed, and corrected for how many were: Holm's method.
The same is asked of the second retraining, which should hardly ever be told apart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from secede.audit import holm
from secede.reports import names
from secede.reports.analysis.answers import Answer, Reply
from secede.reports.analysis.estimates import CONFIDENCE, paired_p_value
from secede.reports.records.runs import Run

TOLD_APART = "Can it be told apart from a retrained model?"
LEAST_SEEDS = 3  # two give a test that finds next to nothing


def judge_told_apart(run: Run, round: int) -> Answer:
    """Answer whether any score or attack surely differs from retraining's."""
    if len(run.seeds) < LEAST_SEEDS:
        told = f"That takes {LEAST_SEEDS} seeds or more; here are {len(run.seeds)}."
        return Answer(TOLD_APART, Reply.UNDETERMINED, told)
    p_values = _p_values(run, run.erased, round)
    found = _sure(p_values)
    asked = f"{len(p_values)} questions"
    if not found:
        sentence = f"Not at this power: of {asked}, none finds a sure difference after Holm."
        return Answer(TOLD_APART, Reply.NO, f"{sentence}{_null(run)}")
    by = "; ".join(f"{what} (p {_shown(p)})" for what, p in found.items())
    sentence = f"By {by}, of {asked}, corrected by Holm's method for all of them."
    return Answer(TOLD_APART, Reply.YES, f"{sentence}{_null(run)}")


def _null(run: Run) -> str:
    if not run.config.retrains_again:
        return ""
    last = run.last_round(names.RETRAIN_AGAIN)
    found = _sure(_p_values(run, names.RETRAIN_AGAIN, last))
    told = f"is, too, by {'; '.join(found)}" if found else "is told apart by none of them"
    return f" A second retraining {told}."


def _sure(p_values: Mapping[str, float]) -> dict[str, float]:
    corrected = dict(zip(p_values, holm([*p_values.values()]), strict=True))
    return {what: p for what, p in corrected.items() if p < 1 - CONFIDENCE}


def _p_values(run: Run, arm: str, round: int) -> dict[str, float]:
    """Return the p value of each question: a score's or an attack's mean difference is zero."""
    asked = dict.fromkeys(
        (run.config.utility, run.config.main_probe, names.LEAVER_ACCURACY, names.LEAVER_LOSS)
    )
    gaps = {names.SCORES[score]: _gaps(run, arm, round, score) for score in asked}
    for attack, label in names.ATTACKS.items():
        there = run.attacks(names.RETRAIN, run.last_round(names.RETRAIN), attack)
        here = run.attacks(arm, round, attack)
        if len(here) == len(there) == len(run.seeds):
            pairs = zip(here, there, strict=True)
            gaps[f"{label}'s attack"] = [one.advantage - other.advantage for one, other in pairs]
    return {what: paired_p_value(values) for what, values in gaps.items() if _finite(values)}


def _gaps(run: Run, arm: str, round: int, score: str) -> list[float]:
    pairs = zip(run.scores(arm, round, score), run.last_scores(names.RETRAIN, score), strict=True)
    values = [(one.value, other.value) for one, other in pairs]
    if names.is_proportion(score):
        return [one - other for one, other in values]
    return [math.log(a / b) if a > 0 and b > 0 else math.nan for a, b in values]


def _finite(values: list[float]) -> bool:
    return all(map(math.isfinite, values))


def _shown(p_value: float) -> str:
    return f"= {p_value:.2g}" if p_value >= 0.001 else "< 0.001"
