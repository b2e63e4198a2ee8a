"""The verdict of an audit by ensembles, in two lines: are the samples forgotten, does it show?

Each line holds four p values against its level, corrected by Holm. *Distinguishable* needs no
control. *Indistinguishable* counts only where the original models, judged by the same rule, are
told from the retrained ones, and is said with the smallest effect that could have been seen.
Both lines together make a false finding in at most twice the level of cases.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from secede.audit.ensembles.membership import MembershipScore
from secede.audit.ensembles.scores import LEVEL, TESTS_PER_LINE, AuditScores, Comparison, Judged
from secede.audit.ensembles.visibility import ToldScore
from secede.audit.multiplicity import holm
from secede.text import plural

Answer = Literal["indistinguishable", "distinguishable", "undetermined"]
POWER = 0.8
VISIBLE_ON = ("leaver", "held-out")  # the groups of samples that the second line looks at


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One test of a line: its name, its p value, and that corrected for the others."""

    name: str
    p_value: float
    p_corrected: float


@dataclass(frozen=True, kw_only=True)
class Line:
    """One answer, the tests behind it, and the smallest effect that they see with the power."""

    answer: Answer
    reason: str
    findings: tuple[Finding, ...]
    smallest_effects: dict[str, float | None]  # an AUC or an accuracy; None: not even 1 is seen

    @property
    def by(self) -> tuple[str, ...]:
        """The tests that tell the models from retrained ones."""
        return tuple(f.name for f in self.findings if f.p_corrected < LEVEL)


@dataclass(frozen=True, kw_only=True)
class EnsembleVerdict:
    """What an audit says of one kind of model."""

    answer: Answer
    headline: str
    samples: Line
    visibility: Line

    def to_dict(self) -> dict[str, Any]:
        """Return the verdict for JSON, and what it is told by."""
        told_by = {"samples": list(self.samples.by), "visibility": list(self.visibility.by)}
        return {**asdict(self), "told_by": told_by}


def judge_ensembles(scores: AuditScores, judged: Judged = "erased") -> EnsembleVerdict:
    """Return the verdict on the erased models, or on another kind as if it were erased."""
    kinds = {"erased": scores.erased, "original": scores.original, "retrained-again": scores.again}
    samples = _samples_line(kinds[judged], scores.original, scores.models)
    visibility = _visibility_line(kinds[judged], scores.original, scores.models)
    answer = _together(samples.answer, visibility.answer)
    return EnsembleVerdict(
        answer=answer,
        headline=_headline(answer, samples, visibility, scores.models),
        samples=samples,
        visibility=visibility,
    )


def fewest_models(level: float = LEVEL, tests: int = TESTS_PER_LINE) -> int:
    """Return how many models the swaps need for a p value that Holm's first step rejects."""
    return 1 + int(np.floor(np.log2(tests / level))) + 1


def _samples_line(judged: Comparison, original: Comparison, models: int) -> Line:
    first = LEVEL / TESTS_PER_LINE
    effects = {_attack_name(s): s.smallest_auc(level=first, power=POWER) for s in judged.membership}
    return _line(
        [(_attack_name(s), s.p_value) for s in judged.membership],
        [s.p_value for s in original.membership],
        models,
        "AUC",
        dict(effects),
    )


def _visibility_line(judged: Comparison, original: Comparison, models: int) -> Line:
    told = [s for s in judged.told if s.samples in VISIBLE_ON]
    return _line(
        _visible_p_values(judged),
        [p for _, p in _visible_p_values(original)],
        models,
        "accuracy",
        {_told_name(s): s.smallest_accuracy(power=POWER) for s in told},
    )


def _visible_p_values(judged: Comparison) -> list[tuple[str, float]]:
    told = [(_told_name(s), s.p_value) for s in judged.told if s.samples in VISIBLE_ON]
    energy = [
        (f"energy distance, {s.samples} samples", s.p_value)
        for s in judged.energy
        if s.samples in VISIBLE_ON
    ]
    return told + energy


def _line(
    tests: list[tuple[str, float]],
    control: list[float],
    models: int,
    effect: str,
    effects: dict[str, float | None],
) -> Line:
    names, p_values = zip(*tests, strict=True)
    findings = tuple(
        Finding(name=name, p_value=p, p_corrected=corrected)
        for name, p, corrected in zip(names, p_values, holm(p_values), strict=True)
    )
    found = [f for f in findings if f.p_corrected < LEVEL]
    answer, reason = _answer(found, min(holm(control)), models, effect, effects)
    return Line(answer=answer, reason=reason, findings=findings, smallest_effects=effects)


def _answer(
    found: list[Finding],
    control: float,
    models: int,
    effect: str,
    effects: dict[str, float | None],
) -> tuple[Answer, str]:
    if found:
        by = ", ".join(f"{f.name} (p = {f.p_corrected:.2g})" for f in found)
        return "distinguishable", f"told apart by {by}; p corrected by Holm"
    if models < fewest_models():
        return "undetermined", f"{plural(models, 'model')}, expected {fewest_models()} or more"
    if control >= LEVEL:
        return (
            "undetermined",
            "the test has no power here: it does not tell the original models from the retrained "
            f"ones either (p = {control:.2g} corrected)",
        )
    return "indistinguishable", _smallest_effect(effect, effects)


def _smallest_effect(effect: str, effects: dict[str, float | None]) -> str:
    shown = ", ".join(
        f"{name}: none" if value is None else f"{name}: {value:.3f}"
        for name, value in effects.items()
    )
    return f"the smallest {effect} seen in {POWER:.0%} of such audits is, by test, {shown}"


def _together(samples: Answer, visibility: Answer) -> Answer:
    answers: set[Answer] = {samples, visibility}
    for answer in ("distinguishable", "undetermined"):
        if answer in answers:
            return answer
    return "indistinguishable"


def _headline(answer: Answer, samples: Line, visibility: Line, models: int) -> str:
    if answer == "undetermined":
        return "Undetermined: " + "; ".join(
            f"{name}: {line.reason}"
            for name, line in (("samples", samples), ("visibility", visibility))
            if line.answer == "undetermined"
        )
    if answer == "indistinguishable":
        return f"Indistinguishable from retraining at the power of {models} models of each kind."
    return f"Distinguishable from retraining: {_what_shows(samples.answer, visibility.answer)}."


def _what_shows(samples: Answer, visibility: Answer) -> str:
    forgotten = {
        "distinguishable": "samples are remembered",
        "indistinguishable": "samples are forgotten as far as can be seen",
        "undetermined": "whether samples are forgotten is undetermined",
    }
    visible = {
        "distinguishable": "the erasure is visible",
        "indistinguishable": "the erasure is not visible otherwise",
        "undetermined": "whether the erasure is visible otherwise is undetermined",
    }
    return f"{forgotten[samples]}, {visible[visibility]}"


def _attack_name(score: MembershipScore) -> str:
    attack = {"u-lira": "U-LiRA", "rmia": "RMIA"}[score.attack]
    return f"{attack}, {score.samples} samples"


def _told_name(score: ToldScore) -> str:
    return f"told from retrained, {score.samples} samples"
