"""The rows of an audit's tables: each score of the erased models beside its null and its control.

The null are models retrained again from another seed, the control the models from before the
erasure: what it shows is what the score can see.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from secede.audit.ensembles import AuditScores, Comparison, Ensembles, Estimate
from secede.reports import names

SAMPLES = {
    "leaver": "the leaver's samples",
    "held-out": "held-out samples",
    "retained": "retained samples",
    "test": "the test set",
    "all": "all samples",
    "most exposed": "the most exposed samples",
}
ATTACKS = {"u-lira": "U-LiRA", "rmia": "RMIA"}
SCALARS = {
    **names.SCORES,
    "worst_client_accuracy": "accuracy of the retained client with the lowest",
    "relearning_steps": "steps until the leaver's samples are learnt again",
}


@dataclass(frozen=True)
class Row:
    """One score: of the erased models, of the null, and of the models from before."""

    label: str
    erased: str
    null: str
    original: str
    detail: str = ""  # an interval or a p value of the erased models'


@dataclass(frozen=True)
class Group:
    """Scores that answer one question, with what they mean."""

    title: str
    meaning: str
    rows: tuple[Row, ...]


def score_groups(scores: AuditScores) -> tuple[Group, ...]:
    """Return all scores but the scalars', question by question."""
    return (
        Group(
            "Can the leaver's samples be told from samples that it never had?",
            "An attack ranks the samples of the pool by how likely they were the leaver's. 0.5 is "
            "chance, 1 is certainty; the shares of samples found are at the stated share of false "
            "alarms. Exposed samples are those that gave themselves away most before.",
            tuple(_membership(scores)),
        ),
        Group(
            "Can a model be told from a retrained one?",
            "Half of the answers are right by chance. On held-out samples the leaver's samples "
            "play no part: what is seen there is that a model was erased, not what was in it.",
            tuple(_each(scores, _told, lambda s: f"told from retrained by {SAMPLES[s.samples]}")),
        ),
        Group(
            "How far are the margins from those of retrained models?",
            "Of two sets of models with the same training, the energy distance is near zero. KLoM "
            "is the mean difference of margins' distributions, sample by sample; the tail is its "
            "95th percentile. ε is that of the NeurIPS 2023 challenge, by sample. Below 1, the "
            "ratio says that the model is nearer to the retrained ones than to those from before.",
            tuple(_distances(scores)),
        ),
    )


def equivalence_rows(scores: AuditScores) -> tuple[Row, ...]:
    """Return how far each quantity is from retraining's, in deviations of the null."""
    return tuple(
        _each(
            scores,
            _equivalence,
            lambda s: SCALARS.get(s.name, s.name),
            field="equivalence",
        )
    )


@dataclass(frozen=True)
class Means:
    """One quantity: its mean over the models of each kind, as text."""

    label: str
    original: str
    erased: str
    retrained: str
    again: str


def mean_rows(ensembles: Ensembles) -> tuple[Means, ...]:
    """Return the means of accuracies, losses and the like."""
    rows = []
    for name, by in ensembles.scalars.items():
        shown = {kind: _scalar(name, float(values.mean())) for kind, values in by.items()}
        rows.append(
            Means(
                SCALARS.get(name, name.replace("_", " ")),
                shown["original"],
                shown["erased"],
                shown["retrained"],
                shown["retrained-again"],
            )
        )
    return tuple(rows)


def _membership(scores: AuditScores) -> Iterator[Row]:
    for key, title in (
        ("auc", "AUC"),
        ("tpr_at_1_percent", "found at 1 % false alarms"),
        ("tpr_at_01_percent", "found at 0.1 % false alarms"),
    ):
        share = key != "auc"
        parts = (scores.erased.membership, scores.again.membership, scores.original.membership)
        for erased, null, original in zip(*parts, strict=True):
            values = [getattr(score, key).estimate for score in (erased, null, original)]
            one, other, control = (_share(v.value) if share else f"{v.value:.3f}" for v in values)
            p_value = "" if share else f", p = {erased.p_value:.2g}"
            yield Row(
                f"{ATTACKS[erased.attack]}, {SAMPLES[erased.samples]}: {title}",
                one,
                other,
                control,
                _interval(values[0], share=share) + p_value,
            )


def _distances(scores: AuditScores) -> Iterator[Row]:
    yield from _each(
        scores,
        lambda s: (f"{s.distance:.3f}", f"p = {s.p_value:.2g}"),
        lambda s: f"energy distance, {SAMPLES[s.samples]}",
        field="energy",
    )
    yield from _each(
        scores,
        lambda s: (
            f"{s.mean:.2f}",
            f"excess {s.excess_mean.value:.2f} ({_interval(s.excess_mean)}), p = {s.p_value:.2g}",
        ),
        lambda s: f"KLoM, {SAMPLES[s.samples]}",
        field="klom",
    )
    yield from _each(
        scores,
        lambda s: (f"{s.tail:.2f}", f"excess {s.excess_tail.value:.2f}"),
        lambda s: f"KLoM's tail, {SAMPLES[s.samples]}",
        field="klom",
    )
    yield from _each(
        scores,
        lambda s: (
            f"{s.erased.median:.2f}",
            f"95th percentile {s.erased.tail:.2f}, null {s.null.tail:.2f}",
        ),
        lambda s: f"median ε, {SAMPLES[s.samples]}",
        field="epsilon",
    )
    yield from _each(
        scores,
        lambda s: (
            "–" if s.ratio is None else f"{s.ratio:.2f}",
            f"nearer to retrained in {_share(1 - s.p_nearer_to_retrained)} of resamples",
        ),
        lambda s: f"nearer to retrained or to before, {SAMPLES[s.samples]}",
        field="relative",
    )


def _each(
    scores: AuditScores,
    show: Callable[[Any], tuple[str, str]],
    label: Callable[[Any], str],
    *,
    field: str = "told",
) -> Iterator[Row]:
    """Yield a row for each score in a field of the three comparisons."""
    for erased, null, original in zip(*_parts(scores, field), strict=True):
        value, detail = show(erased)
        yield Row(label(erased), value, show(null)[0], show(original)[0], detail)


def _parts(scores: AuditScores, field: str) -> list[Sequence[Any]]:
    compared: tuple[Comparison, ...] = (scores.erased, scores.again, scores.original)
    return [getattr(comparison, field) for comparison in compared]


def _told(score: Any) -> tuple[str, str]:
    detail = f"{_interval(score.accuracy, share=True)}, p = {score.p_value:.2g}"
    return _share(score.accuracy.value), detail


def _equivalence(score: Any) -> tuple[str, str]:
    deviations = score.difference / score.null_deviation
    verdict = "equivalent" if score.equivalent else "not shown to be equivalent"
    return f"{deviations:+.2f}", f"{verdict} (within {score.margin:g}), p = {score.p_value:.2g}"


def _scalar(name: str, value: float) -> str:
    if name.endswith("accuracy") or name == names.ATTACK_SUCCESS:
        return _share(value)
    return f"{value:.3g}"


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"


def _interval(estimate: Estimate, *, share: bool = False) -> str:
    if share:
        return f"{100 * estimate.low:.1f} to {100 * estimate.high:.1f} %"
    return f"{estimate.low:.3f} to {estimate.high:.3f}"
