"""What is wrong with samples is said in words, and nothing is drawn to find out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import secede
from secede.data.samples import Samples
from secede.errors import DataError
from secede.federation.engine import LocalTraining
from secede.federation.training import explain_mismatch


def network() -> nn.Module:
    return nn.Linear(4, 3)


X, Y = torch.rand(8, 4), torch.arange(8) % 3
WRONG: list[tuple[Tensor, Tensor, str]] = [
    (X, Y.float(), r"cannot take labels of shape \(8,\), float32"),
    (X[:, :3], Y, r"the model cannot take inputs of shape \(8, 3\), float32"),
    (X.double(), Y, "the model cannot take inputs of .*float64"),
]


@pytest.mark.parametrize(("x", "y", "words"), WRONG)
@pytest.mark.parametrize("step", [secede.SecondChoice(), secede.ProjectedAscent(stop_distance=1.0)])
def test_a_local_step_says_what_does_not_fit(
    x: Tensor, y: Tensor, words: str, step: secede.SecondChoice | secede.ProjectedAscent
) -> None:
    torch.manual_seed(0)
    state = network().state_dict()
    with pytest.raises(DataError, match=words):
        secede.unlearn(network(), [(x, y)], reference=state, own_state=state, weight=0.3, step=step)


def test_a_round_of_training_says_whose_inputs_do_not_fit() -> None:
    engine = secede.Simulator(
        [(X, Y), (X[:, :3], Y)], network, training=LocalTraining(), seed=0, executor="loop"
    )
    state = engine.initial_state("initial")
    with pytest.raises(DataError, match=r"the model cannot take inputs of shape \(1, 3\)"):
        engine.train_round(state, [0, 1], phase="training", number=1)


def test_labels_are_whole_numbers() -> None:
    with pytest.raises(DataError, match=r"labels are torch.float32, expected classes as whole"):
        Samples(X, Y.float())


def test_other_failures_stay_as_they_are() -> None:
    with (
        pytest.raises(RuntimeError, match="mine"),
        explain_mismatch(network(), nn.functional.cross_entropy, [(X, Y)]),
    ):
        raise RuntimeError("mine")
