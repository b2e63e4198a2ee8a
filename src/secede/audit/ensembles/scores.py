"""Every score of an audit by ensembles, with its null beside it.

Each kind of model is compared with the retrained ones: the erased; the original, which shows what
the scores can see; and those retrained again, which show what chance does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from secede.audit.ensembles.bootstrap import Swaps, draw_counts, draw_swaps
from secede.audit.ensembles.divergence import KlomScore, klom_score
from secede.audit.ensembles.energy import EnergyScore, energy_score
from secede.audit.ensembles.epsilon import EpsilonScore, epsilon_score
from secede.audit.ensembles.equivalence import EquivalenceScore, equivalence_score
from secede.audit.ensembles.margins import (
    ENSEMBLES,
    SAMPLE_SETS,
    Booleans,
    Ensemble,
    Ensembles,
    Floats,
)
from secede.audit.ensembles.membership import (
    AttackScores,
    MembershipScore,
    attack_all,
    membership_score,
)
from secede.audit.ensembles.relative import RelativeScore, relative_score
from secede.audit.ensembles.visibility import ToldScore, told_score
from secede.errors import DataError

Judged = Literal["erased", "original", "retrained-again"]

JUDGED: tuple[Judged, ...] = ("erased", "original", "retrained-again")
LEVEL = 0.05  # of each line of the verdict
TESTS_PER_LINE = 4
SAMPLE_GROUPS = ("leaver", "held-out", "retained", "test")
LEAVER_LOSS, TEST_LOSS = "log loss on the leaver's samples", "log loss on the test set"
_SLOW_RESAMPLES, _SLOW_SWAPS = 100, 99  # where each one counts histograms anew


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All scores of one kind of model against the retrained ones."""

    ensemble: Judged
    membership: tuple[MembershipScore, ...]
    told: tuple[ToldScore, ...]
    energy: tuple[EnergyScore, ...]
    relative: tuple[RelativeScore, ...]
    klom: tuple[KlomScore, ...]
    epsilon: tuple[EpsilonScore, ...]
    equivalence: tuple[EquivalenceScore, ...]


@dataclass(frozen=True, kw_only=True)
class AuditScores:
    """The scores of the erased models, of the positive control and of the null."""

    models: int
    samples: dict[str, int]
    seed: int
    erased: Comparison
    original: Comparison
    again: Comparison
    retrained: tuple[MembershipScore, ...]  # membership among the retrained models themselves

    def to_dict(self) -> dict[str, Any]:
        """Return all scores for JSON; what is not finite becomes None."""
        ready: dict[str, Any] = _json_ready(asdict(self))
        return ready


class Group(NamedTuple):
    """Samples that all models of a federation are asked, where `mask` is true."""

    name: str
    margins: dict[Ensemble, Floats]
    mask: Booleans


def score(ensembles: Ensembles, *, seed: int = 0) -> AuditScores:
    """Return every score of the erased models, and the same of control and null."""
    ensembles = _checked(ensembles)
    models = ensembles.models
    tools = _Tools(
        counts=draw_counts(models, seed=seed),
        swaps=draw_swaps(models, seed=seed + 1),
        few_swaps=draw_swaps(models, seed=seed + 2, limit=_SLOW_SWAPS),
    )
    attacks = {kind: _attack(ensembles, kind, seed) for kind in ENSEMBLES}
    compared = {
        kind: _compare(ensembles, kind, attacks[kind], attacks["retrained"], tools)
        for kind in JUDGED
    }
    return AuditScores(
        models=models,
        samples={name: ensembles.margins["erased"][name].shape[1] for name in SAMPLE_SETS},
        seed=seed,
        erased=compared["erased"],
        original=compared["original"],
        again=compared["retrained-again"],
        retrained=_membership(attacks["retrained"], attacks["retrained"], tools.counts),
    )


def sample_groups(ensembles: Ensembles) -> Iterator[Group]:
    """Yield the leaver's samples, those held out of its pool, the retained and the test set."""
    pool, member = ensembles.on("pool"), ensembles.member
    yield Group("leaver", pool, member)
    yield Group("held-out", pool, ~member)
    for name in ("retained", "test"):
        margins = ensembles.on(name)
        yield Group(name, margins, np.ones(margins["erased"].shape, dtype=bool))


def leaver_losses(ensembles: Ensembles) -> dict[str, dict[Ensemble, Floats]]:
    """Return the logarithm of each model's mean loss on the leaver's samples and the test set."""
    losses: dict[str, dict[Ensemble, Floats]] = {LEAVER_LOSS: {}, TEST_LOSS: {}}
    for kind in ENSEMBLES:
        pool, test = ensembles.margins[kind]["pool"], ensembles.margins[kind]["test"]
        own = np.where(ensembles.member, np.logaddexp(0, -pool), 0.0).sum(axis=1)
        losses[LEAVER_LOSS][kind] = np.log(own / ensembles.member.sum(axis=1))
        losses[TEST_LOSS][kind] = np.log(np.logaddexp(0, -test).mean(axis=1))
    return losses


class _Tools(NamedTuple):
    counts: NDArray[np.int64]
    swaps: Swaps
    few_swaps: Swaps


def _attack(ensembles: Ensembles, kind: Ensemble, seed: int) -> tuple[AttackScores, ...]:
    return attack_all(
        ensembles.margins[kind]["pool"],
        ensembles.member,
        original=ensembles.margins["original"]["pool"],
        population=ensembles.margins[kind]["test"],
        seed=seed + 3,
    )


def _membership(
    attacks: tuple[AttackScores, ...],
    retrained: tuple[AttackScores, ...],
    counts: NDArray[np.int64],
) -> tuple[MembershipScore, ...]:
    pairs = zip(attacks, retrained, strict=True)
    return tuple(membership_score(attack, other, counts) for attack, other in pairs)


def _compare(
    ensembles: Ensembles,
    kind: Judged,
    attacks: tuple[AttackScores, ...],
    retrained: tuple[AttackScores, ...],
    tools: _Tools,
) -> Comparison:
    groups = [(group, *_judged(group, kind)) for group in sample_groups(ensembles)]
    return Comparison(
        ensemble=kind,
        membership=_membership(attacks, retrained, tools.counts),
        told=tuple(
            told_score(g.name, one, base, g.mask, tools.swaps, level=LEVEL / TESTS_PER_LINE)
            for g, one, base, _ in groups
        ),
        energy=tuple(
            energy_score(g.name, one, base, again, g.mask, tools.swaps)
            for g, one, base, again in groups
        ),
        relative=tuple(
            relative_score(g.name, one, base, g.margins["original"], g.mask, tools.counts)
            for g, one, base, _ in groups
        ),
        klom=tuple(
            klom_score(
                g.name,
                one,
                base,
                again,
                g.mask,
                tools.counts[:_SLOW_RESAMPLES],
                tools.few_swaps,
            )
            for g, one, base, again in groups
        ),
        epsilon=tuple(
            epsilon_score(g.name, one, base, again, g.mask) for g, one, base, again in groups
        ),
        equivalence=_equivalence(ensembles, kind),
    )


def _judged(group: Group, kind: Judged) -> tuple[Floats, Floats, Floats]:
    return group.margins[kind], group.margins["retrained"], group.margins["retrained-again"]


def _equivalence(ensembles: Ensembles, kind: Judged) -> tuple[EquivalenceScore, ...]:
    scalars = {**leaver_losses(ensembles), **ensembles.scalars}
    return tuple(
        equivalence_score(name, by[kind], by["retrained"], by["retrained-again"])
        for name, by in scalars.items()
    )


def _checked(ensembles: Ensembles) -> Ensembles:
    """Return the margins in double precision; DataError where one is not finite."""
    margins = {
        kind: {name: np.asarray(ensembles.margins[kind][name], float) for name in SAMPLE_SETS}
        for kind in ENSEMBLES
    }
    for kind, sets in margins.items():
        for name, values in sets.items():
            if not np.isfinite(values).all():
                raise DataError(f"margins of {kind} on {name} are not finite: clip them before")
            if len(values) != ensembles.models:
                raise DataError(
                    f"{len(values)} models of {kind} on {name}, expected {ensembles.models}"
                )
    for scalar, by in ensembles.scalars.items():
        lengths = {kind: len(by.get(kind, ())) for kind in ENSEMBLES}
        if set(lengths.values()) != {ensembles.models}:
            raise DataError(f"{scalar} has {lengths} values, expected {ensembles.models} each")
    if not (ensembles.member.any(axis=1) & ~ensembles.member.all(axis=1)).all():
        raise DataError("a leaver has all of the pool or nothing: deal a part to each")
    return Ensembles(margins=margins, member=ensembles.member, scalars=ensembles.scalars)


def _json_ready(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _json_ready(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json_ready(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
