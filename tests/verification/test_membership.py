import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from secede.errors import DataError, StateError
from secede.verification.membership import MINIMUM, MembershipScore, ShokriAttack, halves, yeom
from secede.verification.score import Score

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


def answers(
    count: int, confidence: float, *, seed: int, classes: int = 3
) -> tuple[Floats, Integers]:
    """Return noisy logits that favour the label by `confidence`, and the labels in turn."""
    labels = np.arange(count) % classes
    logits = np.random.default_rng(seed).normal(size=(count, classes))
    logits[np.arange(count), labels] += confidence
    return logits, labels


def test_yeom_matches_the_hand_count() -> None:
    # Below 0.5 are two of four of the leaver's and one of five non-members; 0.5 itself is not.
    score = yeom([0.1, 0.4, 0.5, 0.9], [0.2, 0.5, 0.6, 0.7, 0.8], 0.5)
    assert score.member_rate == Score(0.5, 4)
    assert score.nonmember_accuracy == Score(0.8, 5)
    assert score.advantage == pytest.approx(0.5 - 0.2)


def test_yeom_on_separate_losses_is_perfect() -> None:
    assert yeom([0.0, 0.1], [2.0, 3.0], 1.0).advantage == 1


def test_yeom_on_equal_losses_has_no_advantage() -> None:
    losses = np.random.default_rng(0).exponential(size=50)
    assert yeom(losses, losses, 0.4).advantage == pytest.approx(0, abs=1e-12)


def test_yeom_takes_tensors() -> None:
    assert yeom(torch.tensor([0.1]), torch.tensor([0.9]), 0.5).advantage == 1


@pytest.mark.parametrize(("leaver", "nonmembers"), [([], [1.0]), ([1.0], []), ([[1.0]], [1.0])])
def test_yeom_without_samples_is_refused(leaver: list[float], nonmembers: list[float]) -> None:
    with pytest.raises(DataError, match="expected 1 dimensions and some samples"):
        yeom(leaver, nonmembers, 0.5)


@pytest.mark.parametrize(("loss", "mean"), [(math.nan, 0.5), (math.inf, 0.5), (0.1, math.nan)])
def test_yeom_refuses_losses_that_are_not_finite(loss: float, mean: float) -> None:
    with pytest.raises(StateError, match="finite"):
        yeom([loss], [0.2], mean)


@given(st.lists(st.integers(0, 4), min_size=2, max_size=60), st.integers(0, 2**32))
def test_the_halves_share_out_every_class_evenly(labels: list[int], seed: int) -> None:
    first, second = halves(labels, seed=seed)
    assert sorted([*first, *second]) == list(range(len(labels)))
    known = np.array(labels)
    for label in range(5):
        assert abs(int((known[first] == label).sum()) - int((known[second] == label).sum())) <= 1


def test_the_halves_depend_on_the_seed_alone() -> None:
    labels = np.arange(100) % 10
    assert np.array_equal(halves(labels, seed=1)[0], halves(labels, seed=1)[0])
    assert not np.array_equal(halves(labels, seed=1)[0], halves(labels, seed=2)[0])


def test_one_sample_has_no_halves() -> None:
    with pytest.raises(DataError, match="1 samples cannot be halved"):
        halves([3], seed=0)


def test_shokri_tells_confident_members_from_unsure_strangers() -> None:
    attack = ShokriAttack.fit(*answers(300, 12, seed=0), *answers(300, 0, seed=1), seed=0)
    score = attack.score(*answers(90, 12, seed=2), *answers(60, 0, seed=3))
    assert score.member_rate.value > 0.95
    assert score.nonmember_accuracy.value > 0.95
    assert (score.member_rate.count, score.nonmember_accuracy.count) == (90, 60)
    assert score.pooled_classes == ()


def test_shokri_is_at_chance_when_members_look_like_strangers() -> None:
    attack = ShokriAttack.fit(*answers(3000, 2, seed=0), *answers(3000, 2, seed=1), seed=0)
    score = attack.score(*answers(3000, 2, seed=2), *answers(3000, 2, seed=3))
    assert abs(score.advantage) < 0.05  # four standard errors of two shares of 3000


def test_shokri_calls_the_forgotten_samples_strangers() -> None:
    # The attacked model answers the leaver's samples as the shadow answered non-members.
    attack = ShokriAttack.fit(*answers(300, 12, seed=0), *answers(300, 0, seed=1), seed=0)
    assert attack.score(*answers(90, 0, seed=2), *answers(60, 0, seed=3)).member_rate.value < 0.05


def test_each_class_has_an_attack_model_of_its_own() -> None:
    # Members are the confident ones in class 0 and the unsure ones in class 1.
    def mixed(confidence: tuple[float, float], seed: int) -> tuple[Floats, Integers]:
        logits, labels = answers(400, 0, seed=seed, classes=2)
        logits[np.arange(400), labels] += np.array(confidence)[labels]
        return logits, labels

    attack = ShokriAttack.fit(*mixed((9, 0), 0), *mixed((0, 9), 1), seed=0)
    assert attack.score(*mixed((9, 0), 2), *mixed((0, 9), 3)).advantage > 0.9


def test_many_more_members_than_strangers_do_not_tilt_the_attack() -> None:
    attack = ShokriAttack.fit(*answers(6000, 2, seed=0), *answers(300, 2, seed=1), seed=0)
    score = attack.score(*answers(300, 2, seed=2), *answers(300, 2, seed=3))
    assert 0.2 < score.member_rate.value < 0.8  # unbalanced, it would call all of them members


def test_the_same_seed_gives_the_same_score_and_another_draws_others() -> None:
    def run(seed: int) -> MembershipScore:
        attack = ShokriAttack.fit(*answers(900, 3, seed=0), *answers(90, 2, seed=1), seed=seed)
        return attack.score(*answers(600, 3, seed=2), *answers(600, 2, seed=3))

    assert run(0) == run(0)
    assert len({run(seed) for seed in range(4)}) > 1


def test_the_attack_learns_without_warnings() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ShokriAttack.fit(*answers(300, 40, seed=0), *answers(300, 2, seed=1), seed=0)


def test_the_attack_takes_tensors() -> None:
    parts = [
        torch.from_numpy(part)
        for confidence, seed in ((12, 0), (0, 1))
        for part in answers(300, confidence, seed=seed)
    ]
    assert ShokriAttack.fit(*parts, seed=0).score(*parts).advantage > 0.9


def test_a_class_with_too_few_samples_is_pooled_and_named() -> None:
    logits, labels = answers(300, 12, seed=0)
    rare = (
        np.flatnonzero(labels != 2).tolist() + np.flatnonzero(labels == 2)[: MINIMUM - 1].tolist()
    )
    attack = ShokriAttack.fit(logits[rare], labels[rare], *answers(300, 0, seed=1), seed=0)
    score = attack.score(*answers(90, 12, seed=2), *answers(90, 0, seed=3))
    assert score.pooled_classes == (2,)
    assert score.to_dict()["pooled_classes"] == [2]
    assert score.advantage > 0.9  # the rare class is judged well by what the others taught


def test_a_class_with_just_enough_samples_is_not_pooled() -> None:
    attack = ShokriAttack.fit(
        *answers(3 * MINIMUM, 12, seed=0), *answers(3 * MINIMUM, 0, seed=1), seed=0
    )
    assert attack.pooled_classes == frozenset()


def test_a_pooled_class_that_was_not_attacked_is_not_named() -> None:
    logits, labels = answers(300, 12, seed=0)
    common = labels != 2
    attack = ShokriAttack.fit(logits[common], labels[common], *answers(300, 0, seed=1), seed=0)
    seen = attack.score(logits[common], labels[common], logits[common], labels[common])
    assert attack.pooled_classes == {2}
    assert seen.pooled_classes == ()


def test_too_few_samples_even_for_the_pool_are_refused() -> None:
    with pytest.raises(DataError, match=f"has 9 members .* at least {MINIMUM} of each"):
        ShokriAttack.fit(*answers(300, 12, seed=0), *answers(9, 0, seed=1), seed=0)


def test_models_of_different_classes_are_refused() -> None:
    three, four = answers(300, 1, seed=0), answers(300, 1, seed=1, classes=4)
    with pytest.raises(DataError, match="3 classes and non-members 4"):
        ShokriAttack.fit(*three, *four, seed=0)
    attack = ShokriAttack.fit(*three, *three, seed=0)
    with pytest.raises(DataError, match="attacked model has 4 classes, the shadow 3"):
        attack.score(*four, *four)


@pytest.mark.parametrize(
    ("logits", "labels", "problem"),
    [
        (np.zeros((0, 3)), [], "expected 2 dimensions and some samples"),
        (np.zeros(3), [0, 1, 2], "expected 2 dimensions"),
        (np.zeros((2, 3)), [0, 1, 2], "labels"),
        (np.zeros((2, 3)), [0, 3], "labels run from 0 to 3, expected 0 to 2"),
        (np.zeros((2, 3)), [-1, 0], "labels run from -1 to 0"),
    ],
)
def test_answers_that_do_not_fit_are_refused(
    logits: Floats, labels: list[int], problem: str
) -> None:
    with pytest.raises(DataError, match=problem):
        ShokriAttack.fit(logits, labels, *answers(30, 1, seed=0), seed=0)


def test_logits_that_are_not_finite_are_refused() -> None:
    logits, labels = answers(30, 1, seed=0)
    logits[3, 1] = np.inf
    with pytest.raises(StateError, match="the members' logits are not all finite"):
        ShokriAttack.fit(logits, labels, *answers(30, 1, seed=1), seed=0)


def test_a_record_holds_both_scores_and_the_advantage() -> None:
    score = MembershipScore(Score(0.75, 4), Score(0.5, 2))
    assert score.to_dict() == {
        "member_rate": {"value": 0.75, "count": 4},
        "nonmember_accuracy": {"value": 0.5, "count": 2},
        "advantage": 0.25,
    }
