"""What a model still shows of the leaver, and what it is worth: one number for each condition."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from benchmarks.erasures.cells import Federation
from secede.canaries import read
from secede.state import State
from secede.verification import evaluate_all


@dataclass(frozen=True)
class Scores:
    """The scores of one model."""

    probe: float  # share of the probe's samples with its label
    clean: float  # accuracy on test samples, without the leaver's own classes
    loss: float  # on the leaver's samples
    auc: float  # of membership, by how much lower the loss is than a retrained model's
    canary_p: float | None  # that the canaries are not seen; None: too few to be planted


@dataclass(frozen=True)
class Losses:
    """The losses of a model on the leaver's samples, and on held-out samples made like them."""

    members: Tensor
    nonmembers: Tensor


def measure(made: Federation, state: State, reference: Losses | None) -> tuple[Scores, Losses]:
    """Return a model's scores; membership is told by the losses of a `reference` model."""
    model = made.engine.model(state)
    sets = [made.test, made.probe.samples, made.own, made.nonmembers]
    test, probe, own, held_out = evaluate_all(model, sets)
    losses = Losses(own.losses, held_out.losses)
    auc = 0.5
    if reference is not None:
        auc = area(reference.members - losses.members, reference.nonmembers - losses.nonmembers)
    p_value = None if made.canaries is None else read(model, made.canaries).reading().p_value
    return (
        Scores(
            probe=probe.accuracy(made.probe.measures[made.measure]).value,
            clean=test.accuracy(made.clean).value,
            loss=own.loss().value,
            auc=auc,
            canary_p=p_value,
        ),
        losses,
    )


def area(members: ArrayLike, nonmembers: ArrayLike) -> float:
    """Return how often a member's value is above a non-member's; ties count a half."""
    inside, outside = np.asarray(members), np.sort(np.asarray(nonmembers))
    below = np.searchsorted(outside, inside, side="left")
    up_to = np.searchsorted(outside, inside, side="right")
    return float((below + up_to).mean() / (2 * len(outside)))
