"""The rule of a rehearsal, fixed before anybody looks: which method is named, if any.

It never proves anything: canaries that are not found are evidence at the power that they had.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from secede.audit import CanaryRule, Judgement, Ranks, Reading, judge, shown_p

RETRAIN = "retrain"
GATE_MARGIN = 0.05  # of accuracy: what `secede erase` refuses to lose by default
LEVEL = CanaryRule().level
RULE = (
    "Named is, among the methods after which the canaries of all seeds together show no trace "
    f"(p of {LEVEL:g} or more, where the model before shows p < {LEVEL:g}), the one that loses "
    "least clean accuracy. What differs by no more than two retrainings do is a tie, which the "
    f"fewest uploads decide. A method that loses more than {100 * GATE_MARGIN:g} points against "
    "the model before is not named: the gate of `secede erase` would refuse it. If none is left, "
    "retrain. If the model before shows no canaries, the rehearsal has no power and names none. "
    "That no trace is found is no proof that there is none."
)


@dataclass(frozen=True, kw_only=True)
class Scores:
    """What a kind of model scores: means over the seeds, and the canaries of all seeds together."""

    clean_accuracy: float
    leaver_loss: float
    upload_bytes: float
    seconds: float
    canaries: Reading


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a rehearsal measured; a spread is the mean difference of two retrainings of a seed."""

    before: Scores
    retrained: Scores
    again: Scores
    accuracy_spread: float
    loss_spread: float
    candidates: Mapping[str, Scores]
    failed: Mapping[str, str] = field(default_factory=dict)  # methods that broke, and how


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The method to take, None where none can be named, and why; what canaries say of each."""

    method: str | None
    reason: str
    judgements: Mapping[str, Judgement]


def reading_of(record: Mapping[str, Any] | None) -> Reading:
    """Return the canaries of one model, as an examiner records them."""
    values = record or {"ranks": [], "wins": 0}  # no canaries: refused as a reading
    ranks = Ranks(tuple(map(tuple, values["ranks"])))
    return Reading(ranks=ranks, wins=values["wins"], count=ranks.count)


def mean_of(scores: Sequence[Scores]) -> Scores:
    """Return the mean of the seeds' scores; their canaries count as one set with all coins."""
    readings = [each.canaries for each in scores]
    return Scores(
        clean_accuracy=fmean(each.clean_accuracy for each in scores),
        leaver_loss=fmean(each.leaver_loss for each in scores),
        upload_bytes=fmean(each.upload_bytes for each in scores),
        seconds=fmean(each.seconds for each in scores),
        canaries=Reading(
            ranks=Ranks.joined([reading.ranks for reading in readings]),
            wins=sum(reading.wins for reading in readings),
            count=sum(reading.count for reading in readings),
        ),
    )


def choose(measured: Measured) -> Choice:
    """Return the method that `RULE` names."""
    before, candidates = measured.before, measured.candidates
    rule = CanaryRule(looks=max(1, len(candidates)))
    judgements = {
        name: judge(before.canaries, scores.canaries, rule) for name, scores in candidates.items()
    }
    method, reason = _decide(measured, judgements, rule)
    return Choice(method=method, reason=reason, judgements=judgements)


def _decide(
    measured: Measured, judgements: Mapping[str, Judgement], rule: CanaryRule
) -> tuple[str | None, str]:
    p_before = measured.before.canaries.p_value
    if p_before >= rule.level:
        return None, (
            f"no method is named: before the erasure the model does not tell the canaries "
            f"(p {shown_p(p_before)}, expected less than {rule.level:g}), so that their absence "
            "after it says nothing; rehearse with more seeds, or with more canaries or copies "
            "(canaries.count, canaries.copies)"
        )
    clean = [n for n, judgement in judgements.items() if judgement.verdict == "no trace found"]
    passing = [name for name in clean if lost_points(measured, name) <= 100 * GATE_MARGIN]
    if not passing:
        return RETRAIN, _why_retrain(len(judgements) + len(measured.failed), len(clean))
    best = max(measured.candidates[name].clean_accuracy for name in passing)
    tied = [name for name in passing if _is_tied(measured, name, best)]
    named = min(tied, key=lambda name: _order(measured.candidates[name]))
    return named, _why_named(measured, named, passing, tied)


def lost_points(measured: Measured, name: str) -> float:
    """Return the points of clean accuracy that a candidate loses against the model before."""
    return 100 * (measured.before.clean_accuracy - measured.candidates[name].clean_accuracy)


def _is_tied(measured: Measured, name: str, best: float) -> bool:
    return best - measured.candidates[name].clean_accuracy <= measured.accuracy_spread


def _order(scores: Scores) -> tuple[float, float]:
    return scores.upload_bytes, -scores.clean_accuracy


def _why_retrain(candidates: int, clean: int) -> str:
    if not clean:
        return f"retrain: after none of {candidates} methods the canaries are gone"
    return (
        f"retrain: of {candidates} methods, those after which the canaries are gone lose more than "
        f"{100 * GATE_MARGIN:g} points of clean accuracy"
    )


def _why_named(measured: Measured, named: str, passing: Sequence[str], tied: Sequence[str]) -> str:
    lost, spread = lost_points(measured, named), 100 * measured.accuracy_spread
    accuracy = f"{100 * measured.candidates[named].clean_accuracy:.1f} %"
    change = f"{abs(lost):.1f} points {'below' if lost > 0 else 'above'} the model before"
    if len(passing) == 1:
        why = "no other method passes"
    elif len(tied) == 1:
        why = f"of {len(passing)} that pass it is the best by more than {spread:.1f} points"
    else:
        why = (
            f"of {len(passing)} that pass, {len(tied)} are within {spread:.1f} points of the best, "
            "and it uploads the least"
        )
    return (
        f"{named}: the canaries are not found after it, and its clean accuracy of {accuracy} is "
        f"{change}; {why} (two retrainings differ by {spread:.1f} points)"
    )
