"""The ensembles of an audit, scored and judged: what its page and the terminal show."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from secede.audit.ensembles import (
    AuditScores,
    Ensembles,
    EnsembleVerdict,
    judge_ensembles,
    score,
)
from secede.reports.audit.rows import Group, Means, Row, equivalence_rows, mean_rows, score_groups

VARIANTS = {
    "as erased": "as erased",
    "quantised": "with weights of four bits",
    "trained on": "after ordinary training",
}


@dataclass(frozen=True, kw_only=True)
class Judged:
    """The models of one variant, scored and judged."""

    variant: str
    ensembles: Ensembles
    scores: AuditScores
    verdict: EnsembleVerdict
    uncompared: tuple[str, ...]  # scalars in which retraining again changes nothing

    @property
    def title(self) -> str:
        """What was done to the models, in words."""
        return VARIANTS[self.variant]

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The scores, question by question."""
        return score_groups(self.scores)

    @cached_property
    def equivalence(self) -> tuple[Row, ...]:
        """Differences from retraining in deviations of the null."""
        return equivalence_rows(self.scores)

    @cached_property
    def means(self) -> tuple[Means, ...]:
        """Means over the models of each kind."""
        return mean_rows(self.ensembles)


def judge(variant: str, ensembles: Ensembles, *, seed: int) -> Judged:
    """Score and judge the models of one variant.

    A scalar in which all retrained models are alike has no null to be compared with; it is shown
    and not judged.
    """
    varying = {
        name: by
        for name, by in ensembles.scalars.items()
        if np.ptp(by["retrained-again"] - by["retrained"]) > 0
    }
    scores = score(replace(ensembles, scalars=varying), seed=seed)
    return Judged(
        variant=variant,
        ensembles=ensembles,
        scores=scores,
        verdict=judge_ensembles(scores),
        uncompared=tuple(name for name in ensembles.scalars if name not in varying),
    )
