"""Membership among models of one kind: was this sample the leaver's, or was it held out?

U-LiRA (Hayes et al., SaTML 2025; Carlini et al. 2022, equations 3 and 4): a Gaussian of the margin
for members and one for others, for each sample, fitted on all models but the one that is asked.
RMIA (Zarifzadeh et al. 2024, equations 2 to 4): the share of population samples that a sample
beats by a factor gamma, the other models being the reference models.
A score of federation i never looks at row i of `member`: where models know nothing of the deal,
the AUC is 1/2 on average. Deals have to be drawn independently for that. The p value deals the rows
anew, which is exact; intervals resample models with the fits as they are, and are widened to the
spread over deals: models judge each other, which doubles the variance where nothing is told.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_expit, logsumexp, ndtri
from scipy.stats import rankdata

from secede.audit.ensembles.bootstrap import Estimate, mean_estimate, percentile_estimate
from secede.audit.ensembles.margins import Booleans, Floats
from secede.errors import ConfigError

Attack = Literal["u-lira", "rmia"]
Samples = Literal["all", "most exposed"]
Variance = Literal["own", "shared"]

ATTACKS: tuple[Attack, ...] = ("u-lira", "rmia")
SAMPLES: tuple[Samples, ...] = ("all", "most exposed")
EXPOSED_SHARE = 0.1
FEWEST_EXPOSED = 20  # in a small pool: a model needs members and others among them
DEALS = 199
MANY_MODELS = 64  # from here on members and others have their own variance (Carlini, section VI)
_FLOOR = 1e-6  # of the mean variance: samples on which all models agree
_REACH = 5  # thresholds are kept up to this multiple of the largest false positive rate
_BLOCK = 100  # resamples at once

RATES = (0.01, 0.001)


class Fits(NamedTuple):
    """Gaussians of each sample's margin without the model of the row (models by samples)."""

    mean_in: Floats
    mean_out: Floats
    variance_in: Floats
    variance_out: Floats
    usable: Booleans  # both Gaussians could be fitted


@dataclass(frozen=True, kw_only=True)
class Compared:
    """An estimate, and how far it lies above that of the retrained models."""

    estimate: Estimate
    above_retrained: Estimate


@dataclass(frozen=True, kw_only=True)
class MembershipScore:
    """How well one attack tells the leaver's samples from those held out."""

    attack: Attack
    samples: Samples
    auc: Compared
    tpr_at_1_percent: Compared
    tpr_at_01_percent: Compared
    p_value: float  # of the AUC where models know nothing of the deal, one-sided
    chance_deviation: float  # of the AUC over deals

    def smallest_auc(self, *, level: float, power: float = 0.8) -> float:
        """Return the AUC that a test at this level sees with this power."""
        seen = 0.5 + float(ndtri(1 - level) + ndtri(power)) * self.chance_deviation
        return min(1.0, seen)


@dataclass(frozen=True, kw_only=True)
class AttackScores:
    """What one attack gives each sample in each model, and who is counted."""

    attack: Attack
    samples: Samples
    scores: Floats  # models by samples that are counted
    member: Booleans
    dealt: Floats  # mean AUC for each deal

    @property
    def aucs(self) -> Floats:
        """The AUC in each model."""
        return auc_by_model(self.scores, self.member)


def fit(margins: Floats, member: Booleans, *, variance: Variance = "shared") -> Fits:
    """Fit members and others without the model of each row; `shared` is one variance for both."""
    centred = margins - margins.mean(axis=0)
    count_in, mean_in, squares_in = _left_out(centred, member)
    count_out, mean_out, squares_out = _left_out(centred, ~member)
    least = 2 if variance == "own" else 1
    usable = (count_in >= least) & (count_out >= least) & (count_in + count_out > 2)
    floor = _FLOOR * max(float(centred.var(axis=0).mean()), np.finfo(float).tiny)
    if variance == "own":
        spread_in = squares_in / np.maximum(count_in - 1, 1)
        spread_out = squares_out / np.maximum(count_out - 1, 1)
    else:
        spread_in = (squares_in + squares_out) / np.maximum(count_in + count_out - 2, 1)
        spread_out = spread_in
    shift = margins.mean(axis=0)
    return Fits(
        mean_in + shift,
        mean_out + shift,
        np.maximum(spread_in, floor),
        np.maximum(spread_out, floor),
        usable,
    )


def _left_out(centred: Floats, chosen: Booleans) -> tuple[Floats, Floats, Floats]:
    """Return count, mean and sum of squared deviations of the chosen, without each row's own."""
    own = np.where(chosen, centred, 0.0)
    count = chosen.sum(axis=0) - chosen.astype(float)
    total = own.sum(axis=0) - own
    squares = (own**2).sum(axis=0) - own**2
    mean = total / np.maximum(count, 1)
    return count, mean, np.maximum(squares - count * mean**2, 0.0)


def lira_scores(margins: Floats, member: Booleans, *, variance: Variance = "shared") -> Floats:
    """Return log N(margin; members) − log N(margin; others); 0 where a side is too small to fit."""
    fits = fit(margins, member, variance=variance)
    score = (margins - fits.mean_out) ** 2 / fits.variance_out
    score -= (margins - fits.mean_in) ** 2 / fits.variance_in
    if variance == "own":
        score += np.log(fits.variance_out / fits.variance_in)
    scores: Floats = np.where(fits.usable, score / 2, 0.0)
    return scores


def rmia_scores(margins: Floats, population: Floats, *, gamma: float = 1.0) -> Floats:
    """Return the share of the population that each sample beats by `gamma`, in each model.

    With confident models few ratios reach 2: ties then hide what gamma = 1 shows.
    """
    if gamma < 1:
        raise ConfigError(f"gamma is {gamma}, expected 1 or more")
    ratios, others = _log_ratio(margins), np.sort(_log_ratio(population), axis=1)
    beaten = [
        np.searchsorted(other, ratio - np.log(gamma), side="right")
        for ratio, other in zip(ratios, others, strict=True)
    ]
    shares: Floats = np.array(beaten) / population.shape[1]
    return shares


def _log_ratio(margins: Floats) -> Floats:
    """Return log p(x | model) − log p(x), the latter being the mean over all other models."""
    log_p = log_expit(margins)
    others = [logsumexp(np.delete(log_p, model, axis=0), axis=0) for model in range(len(log_p))]
    ratios: Floats = log_p - (np.array(others) - np.log(len(log_p) - 1))
    return ratios


def most_exposed(
    original: Floats, member: Booleans, *, share: float = EXPOSED_SHARE
) -> NDArray[np.int64]:
    """Return for each federation the samples whose membership tells most in the original models.

    They are chosen by the margin's rise in deviations, in all federations but the one of the row.
    """
    fits = fit(original, member)
    rise = (fits.mean_in - fits.mean_out) / np.sqrt(fits.variance_in)
    rise = np.where(fits.usable, rise, -np.inf)
    samples = original.shape[1]
    count = min(samples, max(FEWEST_EXPOSED, round(share * samples)))
    return np.argpartition(-rise, count - 1, axis=1)[:, :count]


def auc_by_model(scores: Floats, member: Booleans, *, ranked: bool = False) -> Floats:
    """Return for each model the chance that a member scores above another; a tie counts half.

    Where there are members or others alone it is 1/2. `ranked` says that scores are ranks already.
    """
    inside = member.sum(axis=1)
    pairs = inside * (member.shape[1] - inside)
    places = scores if ranked else ranks(scores)
    above = np.where(member, places, 0).sum(axis=1) - inside * (inside + 1) / 2
    return np.where(pairs > 0, above / np.maximum(pairs, 1), 0.5)


def ranks(scores: Floats) -> Floats:
    """Return the rank of each sample in its model, from 1; ties share their mean rank."""
    order = np.argsort(scores, axis=1)
    ordered = np.take_along_axis(scores, order, axis=1)
    if (ordered[:, 1:] == ordered[:, :-1]).any():
        return rankdata(scores, axis=1)
    places = np.empty_like(scores)
    np.put_along_axis(places, order, np.arange(1.0, scores.shape[1] + 1)[None], axis=1)
    return places


class Tails(NamedTuple):
    """How many members and others of each model score above each threshold, falling."""

    inside: Floats
    outside: Floats
    all_inside: Floats
    all_outside: Floats


def tails(scores: Floats, member: Booleans) -> Tails:
    """Return the tail of scores from which true positive rates at small rates are read."""
    others = np.unique(scores[~member])[::-1]
    kept = max(2, int(np.ceil(_REACH * max(RATES) * np.sum(~member))) + 1)
    thresholds = others[:kept]
    return Tails(
        _above(scores, member, thresholds),
        _above(scores, ~member, thresholds),
        member.sum(axis=1).astype(float),
        (~member).sum(axis=1).astype(float),
    )


def _above(scores: Floats, chosen: Booleans, thresholds: Floats) -> Floats:
    rows = [np.sort(row[mask]) for row, mask in zip(scores, chosen, strict=True)]
    return np.array([len(r) - np.searchsorted(r, thresholds, side="right") for r in rows], float)


def true_positive_rates(tail: Tails, counts: NDArray[np.int64], rate: float) -> Floats:
    """Return for each resample the largest true positive rate whose false one is at most `rate`."""
    blocks = [
        _rates(tail, counts[start : start + _BLOCK].astype(float), rate)
        for start in range(0, len(counts), _BLOCK)
    ]
    return np.concatenate(blocks)


def _rates(tail: Tails, counts: Floats, rate: float) -> Floats:
    false = counts @ tail.outside / (counts @ tail.all_outside)[:, None]
    place = np.maximum((false <= rate).sum(axis=1) - 1, 0)
    hits = (counts * tail.inside[:, place].T).sum(axis=1)
    rates: Floats = hits / (counts @ tail.all_inside)
    return rates


def attack_all(
    margins: Floats,
    member: Booleans,
    *,
    original: Floats,
    population: Floats,
    seed: int,
    deals: int = DEALS,
    gamma: float = 1.0,
) -> tuple[AttackScores, ...]:
    """Return both attacks on all and on the most exposed samples of one kind of model."""
    rmia = rmia_scores(margins, population, gamma=gamma)
    game = _Game(margins, original, rmia, ranks(rmia))
    exposed = most_exposed(original, member)
    rng = np.random.default_rng(seed)
    dealt = [game.chance_aucs(*game.deal(rng, member, exposed)) for _ in range(deals)]
    names = [(attack, samples) for attack in ATTACKS for samples in SAMPLES]
    return tuple(
        AttackScores(attack=a, samples=s, scores=scores, member=counted, dealt=np.array(column))
        for (a, s), (scores, counted), column in zip(
            names, game.play(member, exposed), zip(*dealt, strict=True), strict=True
        )
    )


@dataclass(frozen=True)
class _Game:
    margins: Floats
    original: Floats
    rmia: Floats
    rmia_ranks: Floats  # of all samples: they do not change with the deal

    def play(
        self, member: Booleans, exposed: NDArray[np.int64]
    ) -> Iterator[tuple[Floats, Booleans]]:
        """Yield scores and members of each attack: on all samples, then on the exposed."""
        variance: Variance = "own" if len(member) >= MANY_MODELS else "shared"
        for scores in (lira_scores(self.margins, member, variance=variance), self.rmia):
            yield scores, member
            yield (
                np.take_along_axis(scores, exposed, axis=1),
                np.take_along_axis(member, exposed, axis=1),
            )

    def chance_aucs(self, member: Booleans, exposed: NDArray[np.int64]) -> list[float]:
        """Return the mean AUC of each attack, in the order of `play`."""
        pairs = list(self.play(member, exposed))
        by_model = [auc_by_model(*pair) for pair in (pairs[0], pairs[1], pairs[3])]
        by_model.insert(2, auc_by_model(self.rmia_ranks, member, ranked=True))
        return [float(aucs.mean()) for aucs in by_model]

    def deal(
        self, rng: np.random.Generator, member: Booleans, exposed: NDArray[np.int64]
    ) -> tuple[Booleans, NDArray[np.int64]]:
        """Deal the rows to other federations; what was chosen from these models, choose anew."""
        order = rng.permutation(len(member))
        dealt = member[order]
        if self.margins is self.original:
            return dealt, most_exposed(self.original, dealt)
        return dealt, exposed[order]


def membership_score(
    attack: AttackScores, retrained: AttackScores, counts: NDArray[np.int64]
) -> MembershipScore:
    """Return the rates of one attack with intervals over models, beside the retrained models."""
    deviation, other = float(attack.dealt.std(ddof=1)), float(retrained.dealt.std(ddof=1))
    rise = attack.aucs - retrained.aucs
    both = 0.0 if attack is retrained else float(np.hypot(deviation, other))
    reached = int(np.sum(attack.dealt >= attack.aucs.mean()))
    return MembershipScore(
        attack=attack.attack,
        samples=attack.samples,
        auc=Compared(
            estimate=mean_estimate(attack.aucs, counts, least_deviation=deviation),
            above_retrained=mean_estimate(rise, counts, least_deviation=both),
        ),
        tpr_at_1_percent=_compare_rates(attack, retrained, counts, RATES[0]),
        tpr_at_01_percent=_compare_rates(attack, retrained, counts, RATES[1]),
        p_value=(1 + reached) / (1 + len(attack.dealt)),
        chance_deviation=deviation,
    )


def _compare_rates(
    attack: AttackScores, retrained: AttackScores, counts: NDArray[np.int64], rate: float
) -> Compared:
    each = np.concatenate([np.ones_like(counts[:1]), counts])
    draws = true_positive_rates(tails(attack.scores, attack.member), each, rate)
    others = true_positive_rates(tails(retrained.scores, retrained.member), each, rate)
    rise, models = draws - others, counts.shape[1]
    return Compared(
        estimate=percentile_estimate(float(draws[0]), draws[1:], models=models),
        above_retrained=percentile_estimate(float(rise[0]), rise[1:], models=models),
    )
