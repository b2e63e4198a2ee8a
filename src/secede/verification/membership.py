"""Membership attacks: can an attacker tell that the leaver's samples were trained on?

Yeom et al. 2018 call a sample a member when its loss is below the mean training loss. Shokri et
al. 2017 train an attack model per class on a shadow model's posteriors; as in Halimi et al.
2022 the shadow is the FedAvg model. Both are also scored on samples that nobody trained on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from secede.errors import DataError, StateError
from secede.verification.score import Score, share

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]

MINIMUM = 10  # members and non-members that a class needs for an attack model of its own


@dataclass(frozen=True)
class MembershipScore:
    """An attack's scores on the leaver's training samples and on known non-members."""

    member_rate: Score  # share of the leaver's samples called members: the paper's number
    nonmember_accuracy: Score  # share of the known non-members called non-members
    pooled_classes: tuple[int, ...] = ()  # too few samples: judged by the model for all classes

    @property
    def advantage(self) -> float:
        """How much more often the leaver's samples than non-members are called members."""
        return self.member_rate.value - (1 - self.nonmember_accuracy.value)

    def to_dict(self) -> dict[str, object]:
        """Return the scores as records hold them; `pooled_classes` only if there are any."""
        pooled = {"pooled_classes": list(self.pooled_classes)} if self.pooled_classes else {}
        return {
            "member_rate": self.member_rate.to_dict(),
            "nonmember_accuracy": self.nonmember_accuracy.to_dict(),
            "advantage": self.advantage,
            **pooled,
        }


def yeom(
    leaver_losses: ArrayLike, nonmember_losses: ArrayLike, mean_training_loss: float
) -> MembershipScore:
    """Call a sample a member when its loss is below the attacked model's mean training loss."""
    if not np.isfinite(mean_training_loss):
        raise StateError(f"a mean training loss of {mean_training_loss}, expected a finite number")
    leaver = _finite(leaver_losses, "the leaver's losses", dimensions=1)
    nonmembers = _finite(nonmember_losses, "the non-members' losses", dimensions=1)
    return _membership(leaver < mean_training_loss, nonmembers < mean_training_loss)


def halves(labels: ArrayLike, *, seed: int) -> tuple[Integers, Integers]:
    """Return two disjoint sets of indices, at random, that share each class evenly.

    The non-members that train an attack must not be those it is scored on: one half for each.
    """
    known = np.asarray(labels)
    shuffled = np.random.default_rng(seed).permutation(len(known))
    by_class = shuffled[np.argsort(known[shuffled], kind="stable")]
    first, second = np.sort(by_class[0::2]), np.sort(by_class[1::2])
    if len(second) == 0:
        raise DataError(f"{len(known)} samples cannot be halved, expected at least two")
    return first, second


class _Classifier(Protocol):
    def predict(self, features: Floats) -> Booleans: ...


@dataclass(frozen=True)
class ShokriAttack:
    """Attack models that tell members from non-members by their posteriors, one per class.

    Each is a logistic regression: on overfitted MNIST models it told the two apart as well as
    boosted trees and a small network did. A class with fewer than `MINIMUM` members or
    non-members is judged by one model for all classes together; every score names those classes.
    """

    models: tuple[_Classifier, ...]  # by class
    pooled_classes: frozenset[int]

    @classmethod
    def fit(
        cls,
        member_logits: ArrayLike,
        member_labels: ArrayLike,
        nonmember_logits: ArrayLike,
        nonmember_labels: ArrayLike,
        *,
        seed: int,
    ) -> Self:
        """Train on the shadow's outputs, with as many members as non-members of each class."""
        members = _Answers.of(member_logits, member_labels, "the members'")
        nonmembers = _Answers.of(nonmember_logits, nonmember_labels, "the non-members'")
        if members.classes != nonmembers.classes:
            raise DataError(
                f"members have {members.classes} classes and non-members {nonmembers.classes}: "
                "expected outputs of one model"
            )
        pairs = _balanced(members, nonmembers, np.random.default_rng(seed))
        small = frozenset(label for label, pair in enumerate(pairs) if len(pair[0]) < MINIMUM)
        own = {label: _train(*pair) for label, pair in enumerate(pairs) if label not in small}
        models = own | dict.fromkeys(small, _train_pooled(pairs)) if small else own
        return cls(tuple(models[label] for label in range(len(pairs))), small)

    def score(
        self,
        leaver_logits: ArrayLike,
        leaver_labels: ArrayLike,
        nonmember_logits: ArrayLike,
        nonmember_labels: ArrayLike,
    ) -> MembershipScore:
        """Attack the model with these outputs; the non-members must be new to the attack."""
        leaver = _Answers.of(leaver_logits, leaver_labels, "the leaver's")
        nonmembers = _Answers.of(nonmember_logits, nonmember_labels, "the non-members'")
        present = {int(label) for part in (leaver, nonmembers) for label in np.unique(part.labels)}
        pooled = tuple(sorted(present & self.pooled_classes))
        return _membership(self._calls(leaver), self._calls(nonmembers), pooled)

    def _calls(self, answers: _Answers) -> Booleans:
        """Return which samples are called members."""
        if answers.classes != len(self.models):
            raise DataError(
                f"the attacked model has {answers.classes} classes, the shadow {len(self.models)}"
            )
        calls = np.zeros(len(answers.labels), dtype=np.bool_)
        for label in np.unique(answers.labels):
            of_class = answers.labels == label
            calls[of_class] = self.models[label].predict(answers.posteriors[of_class])
        return calls


@dataclass(frozen=True)
class _Answers:
    """A model's posteriors (n, classes) for samples, and their labels (n,).

    The label's own posterior comes first and the others follow in falling order, so that a
    column means the same in every class.
    """

    posteriors: Floats
    labels: Integers

    @classmethod
    def of(cls, logits: ArrayLike, labels: ArrayLike, whose: str) -> _Answers:
        rows = _finite(logits, f"{whose} logits", dimensions=2)
        known = np.asarray(labels, dtype=np.int64)
        if known.shape != rows.shape[:1]:
            raise DataError(f"{whose} logits have shape {rows.shape}, labels {known.shape}")
        if known.min() < 0 or known.max() >= rows.shape[1]:
            raise DataError(
                f"{whose} labels run from {known.min()} to {known.max()}, "
                f"expected 0 to {rows.shape[1] - 1}"
            )
        odds = np.exp(rows - rows.max(axis=1, keepdims=True))
        posteriors = odds / odds.sum(axis=1, keepdims=True)
        is_own = np.arange(rows.shape[1]) == known[:, None]
        others = np.sort(posteriors[~is_own].reshape(len(known), -1), axis=1)[:, ::-1]
        return cls(np.column_stack([posteriors[is_own], others]), known)

    @property
    def classes(self) -> int:
        return int(self.posteriors.shape[1])


_Pair = tuple[Floats, Floats]  # posteriors of as many members as non-members


def _balanced(
    members: _Answers, nonmembers: _Answers, generator: np.random.Generator
) -> list[_Pair]:
    """Return, by class, as many of its members as of its non-members, drawn at random."""
    pairs = []
    for label in range(members.classes):
        inside = members.posteriors[members.labels == label]
        outside = nonmembers.posteriors[nonmembers.labels == label]
        count = min(len(inside), len(outside))
        pairs.append((_draw(inside, count, generator), _draw(outside, count, generator)))
    return pairs


def _draw(rows: Floats, count: int, generator: np.random.Generator) -> Floats:
    return rows[generator.permutation(len(rows))[:count]]


def _train_pooled(pairs: Sequence[_Pair]) -> _Classifier:
    inside, outside = (np.concatenate([pair[side] for pair in pairs]) for side in (0, 1))
    if len(inside) < MINIMUM:
        raise DataError(
            f"Shokri's attack has {len(inside)} members and non-members of the same classes to "
            f"learn from, expected at least {MINIMUM} of each: give it more held-out samples"
        )
    return _train(inside, outside)


def _train(inside: Floats, outside: Floats) -> _Classifier:
    from sklearn.linear_model import LogisticRegression

    features = np.concatenate([inside, outside])
    membership = np.repeat([True, False], [len(inside), len(outside)])
    # Posteriors share one scale; members differ in their last digits, so regularise weakly.
    model: _Classifier = LogisticRegression(C=100, max_iter=2000).fit(features, membership)
    return model


def _membership(
    leaver: Booleans, nonmembers: Booleans, pooled: tuple[int, ...] = ()
) -> MembershipScore:
    return MembershipScore(
        share(int(leaver.sum()), len(leaver)),
        share(int((~nonmembers).sum()), len(nonmembers)),
        pooled,
    )


def _finite(values: ArrayLike, what: str, *, dimensions: int) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != dimensions or array.size == 0:
        raise DataError(
            f"{what} have shape {array.shape}, expected {dimensions} dimensions and some samples"
        )
    if not np.isfinite(array).all():
        raise StateError(f"{what} are not all finite: the model diverged")
    return array
