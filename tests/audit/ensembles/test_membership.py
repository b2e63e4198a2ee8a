from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from harness.synthetic_margins import allowed_rejections, rejections, synthetic
from secede.audit.ensembles.bootstrap import draw_counts, mean_estimate
from secede.audit.ensembles.margins import Booleans, Ensembles, Floats
from secede.audit.ensembles.membership import (
    AttackScores,
    Variance,
    attack_all,
    auc_by_model,
    lira_scores,
    membership_score,
    most_exposed,
    ranks,
    rmia_scores,
    tails,
    true_positive_rates,
)
from secede.errors import ConfigError


def data(models: int = 9, samples: int = 14, seed: int = 0) -> tuple[Floats, Booleans]:
    rng = np.random.default_rng(seed)
    member = rng.random((models, samples)) < 0.5
    return rng.normal(3, 2, (models, samples)) + member, member


def slow_lira(margins: Floats, member: Booleans, variance: Variance) -> Floats:
    scores = np.zeros_like(margins)
    for i in range(len(margins)):
        for j in range(margins.shape[1]):
            others = [k for k in range(len(margins)) if k != i]
            inside = [float(margins[k, j]) for k in others if member[k, j]]
            outside = [float(margins[k, j]) for k in others if not member[k, j]]
            least = 2 if variance == "own" else 1
            if min(len(inside), len(outside)) < least:
                continue
            if variance == "own":
                spreads = [float(np.std(side, ddof=1)) for side in (inside, outside)]
            else:
                squares = [(x - np.mean(side)) ** 2 for side in (inside, outside) for x in side]
                spreads = [math.sqrt(sum(squares) / (len(others) - 2))] * 2
            scores[i, j] = norm.logpdf(margins[i, j], np.mean(inside), spreads[0])
            scores[i, j] -= norm.logpdf(margins[i, j], np.mean(outside), spreads[1])
    return scores


def slow_rmia(margins: Floats, population: Floats, gamma: float) -> Floats:
    def ratio(values: Floats, i: int, j: int) -> float:
        p = [1 / (1 + math.exp(-values[k, j])) for k in range(len(values))]
        return p[i] / float(np.mean([p[k] for k in range(len(p)) if k != i]))

    scores = np.zeros_like(margins)
    for i in range(len(margins)):
        beaten = [ratio(population, i, z) for z in range(population.shape[1])]
        for j in range(margins.shape[1]):
            scores[i, j] = np.mean([ratio(margins, i, j) / z >= gamma for z in beaten])
    return scores


@pytest.mark.parametrize("variance", ["own", "shared"])
def test_u_lira_equals_a_slow_loop(variance: Variance) -> None:
    margins, member = data()
    fast = lira_scores(margins, member, variance=variance)
    np.testing.assert_allclose(fast, slow_lira(margins, member, variance), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("gamma", [1.0, 1.5, 2.0])
def test_rmia_equals_a_slow_loop(gamma: float) -> None:
    margins, _ = data()
    population, _ = data(samples=11, seed=1)
    np.testing.assert_allclose(
        rmia_scores(margins - 3, population - 3, gamma=gamma),
        slow_rmia(margins - 3, population - 3, gamma),
    )


def test_rmia_bears_margins_whose_probability_is_nothing() -> None:
    margins, population = np.full((3, 2), -2000.0), np.full((3, 4), -2000.0)
    margins[0, 0] = 0
    scores = rmia_scores(margins, population)
    assert scores[0, 0] == 1
    assert (scores[1:, 0] == 0).all()
    with pytest.raises(ConfigError, match=r"gamma is 0\.5"):
        rmia_scores(margins, population, gamma=0.5)


def test_no_score_of_a_federation_looks_at_its_own_deal() -> None:
    margins, member = data(12, 40)
    changed = member.copy()
    changed[3] = ~changed[3]
    variances: tuple[Variance, ...] = ("own", "shared")
    for variance in variances:
        scores = [lira_scores(margins, deal, variance=variance)[3] for deal in (member, changed)]
        np.testing.assert_allclose(scores[0], scores[1], atol=1e-9)
    chosen = [set(most_exposed(margins, deal)[3]) for deal in (member, changed)]
    assert chosen[0] == chosen[1]


def test_a_sample_that_one_side_has_too_few_of_tells_nothing() -> None:
    margins, member = data(6, 3)
    member[:, 0] = True
    assert (lira_scores(margins, member)[:, 0] == 0).all()


def test_the_auc_counts_pairs_and_ties_half() -> None:
    scores = np.array([[3.0, 1.0, 2.0, 2.0], [0.0, 0.0, 0.0, 0.0]])
    member = np.array([[True, False, True, False], [True, True, False, False]])
    # Of the four pairs 3 > 1, 3 > 2, 2 > 1 and 2 = 2.
    assert auc_by_model(scores, member).tolist() == [3.5 / 4, 0.5]
    assert auc_by_model(ranks(scores), member, ranked=True).tolist() == [3.5 / 4, 0.5]
    assert ranks(np.array([[0.3, 0.1, 0.2]])).tolist() == [[3, 1, 2]]


def test_where_there_are_members_alone_nothing_is_told() -> None:
    assert auc_by_model(np.array([[1.0, 2.0]]), np.ones((1, 2), dtype=bool)).tolist() == [0.5]


def test_the_rate_at_few_false_positives_by_hand() -> None:
    # Pooled: others 9, 5, 1, 0 and members 10, 8, 6, 2. At 1/4 of the others one may be above.
    scores = np.array([[10.0, 9.0, 8.0, 5.0], [6.0, 1.0, 2.0, 0.0]])
    member = np.array([[True, False, True, False], [True, False, True, False]])
    tail = tails(scores, member)
    once = np.ones((1, 2), dtype=int)
    assert true_positive_rates(tail, once, 0.01).tolist() == [0.25]  # above 9: 10 alone
    assert true_positive_rates(tail, once, 0.001).tolist() == [0.25]


def test_resampled_rates_are_those_of_the_models_repeated() -> None:
    rng = np.random.default_rng(0)
    scores, member = rng.normal(size=(5, 400)), rng.random((5, 400)) < 0.5
    scores += member
    counts = draw_counts(5, seed=0, resamples=6)
    fast = true_positive_rates(tails(scores, member), counts, 0.01)
    for row, rate in zip(counts, fast, strict=True):
        models = np.repeat(np.arange(5), row)
        inside, outside = scores[models][member[models]], scores[models][~member[models]]
        cuts = [cut for cut in outside if np.mean(outside > cut) <= 0.01]
        assert rate == pytest.approx(np.mean(inside > min(cuts)))


def test_the_most_exposed_are_those_that_rise_most() -> None:
    rng = np.random.default_rng(0)
    member = rng.random((20, 300)) < 0.5
    margins = rng.normal(size=(20, 300))
    margins[:, 7] += 6 * member[:, 7]
    margins[:, 30] += 6 * member[:, 30]
    chosen = most_exposed(margins, member)
    assert chosen.shape == (20, 30)
    assert all({7, 30} <= set(row) for row in chosen)
    assert most_exposed(margins[:, :50], member[:, :50]).shape == (20, 20)
    assert most_exposed(margins[:, :5], member[:, :5]).shape == (20, 5)


def attack(ensembles: Ensembles, kind: str, *, deals: int = 39) -> tuple[AttackScores, ...]:
    margins = ensembles.margins[kind]  # type: ignore[index]
    return attack_all(
        margins["pool"],
        ensembles.member,
        original=ensembles.margins["original"]["pool"],
        population=margins["test"],
        seed=1,
        deals=deals,
    )


def test_models_that_know_nothing_are_found_out_at_the_nominal_rate() -> None:
    counts = draw_counts(8, seed=0, resamples=200)
    p_values, outside = list[list[float]](), 0
    for seed in range(200):
        (*attacks,) = attack(synthetic(pool=50, seed=seed), "retrained-again", deals=9)
        p_values.append([(1 + np.sum(a.dealt >= a.aucs.mean())) / 10 for a in attacks])
        deviation = float(attacks[0].dealt.std(ddof=1))
        auc = mean_estimate(attacks[0].aucs, counts, least_deviation=deviation)
        outside += not auc.low <= 0.5 <= auc.high
    for column in zip(*p_values, strict=True):
        assert rejections(column, 0.1) in allowed_rejections(200, 0.1)
        assert rejections(column, 0.3) in allowed_rejections(200, 0.3)
    assert outside <= max(allowed_rejections(200, 0.05))


def test_the_attacks_do_not_mistake_the_control_they_chose_the_exposed_by() -> None:
    p_values = [
        (1 + np.sum(each.dealt >= each.aucs.mean())) / 10
        for seed in range(100)
        for each in attack(synthetic(pool=50, seed=seed, original=0), "original", deals=9)[1:2]
    ]
    assert rejections(p_values, 0.1) in allowed_rejections(100, 0.1)


def test_half_a_deviation_of_memory_is_seen_with_the_stated_power() -> None:
    """Few models and samples: U-LiRA's power is above a half, and 1 with all of an audit's."""
    seen = [
        rejections([(1 + np.sum(each.dealt >= each.aucs.mean())) / 20], 0.05)
        for seed in range(40)
        for each in attack(synthetic(12, seed=seed, remembered=0.5), "erased", deals=19)[:1]
    ]
    assert np.mean(seen) > 0.5
    large = attack(synthetic(32, pool=600, remembered=0.5), "erased")
    for each in large:
        assert (each.dealt < each.aucs.mean()).all()


def test_the_smallest_auc_is_seen_in_eight_of_ten_audits() -> None:
    """An AUC that is normal about the smallest one passes the threshold with the power."""
    each, *_ = attack(synthetic(16), "retrained-again", deals=99)
    score = membership_score(each, each, draw_counts(16, seed=0))
    threshold = 0.5 + norm.isf(0.05) * score.chance_deviation
    smallest = score.smallest_auc(level=0.05, power=0.8)
    assert norm.sf(threshold, smallest, score.chance_deviation) == pytest.approx(0.8)


def test_retrained_models_lie_nothing_above_themselves() -> None:
    ensembles = synthetic(16, remembered=1)
    counts = draw_counts(16, seed=0)
    erased, retrained = attack(ensembles, "erased"), attack(ensembles, "retrained")
    own = membership_score(retrained[0], retrained[0], counts).auc.above_retrained
    assert (own.value, own.low, own.high) == (0, 0, 0)
    score = membership_score(erased[0], retrained[0], counts)
    difference = erased[0].aucs.mean() - retrained[0].aucs.mean()
    assert score.auc.above_retrained.value == pytest.approx(difference)
    assert score.auc.above_retrained.low > 0
    assert score.tpr_at_1_percent.estimate.value >= score.tpr_at_01_percent.estimate.value
