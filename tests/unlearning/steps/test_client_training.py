from __future__ import annotations

import torch
from torch import nn

from secede import state as states
from secede.federation.engine import Batch, ClientSide, LocalTraining
from secede.unlearning.steps import batches_per_epoch, train_client

# At zero the softmax is (1/2, 1/2), and a sample x = 1 of class 0 has the gradient (-1/2, 1/2).
ONE: Batch = (torch.ones(1, 1), torch.tensor([0]))


def side() -> tuple[ClientSide, list[int]]:
    """Return a client with five samples in batches of two, and what passes it asked for."""
    passes = list[int]()

    def batches(_size: int, number: int) -> list[Batch]:
        passes.append(number)
        return [ONE] * 3

    return ClientSide(
        global_state={"weight": torch.zeros(2, 1)},
        own=None,
        samples=5,
        training=LocalTraining(batch_size=2, epochs=2),
        fresh_model=lambda _: nn.Linear(1, 2, bias=False),
        batches=batches,
        loss=nn.functional.cross_entropy,
    ), passes


def test_one_step_matches_the_hand_sum() -> None:
    # A sixth of two epochs of three batches is one step.
    at, _ = side()
    reply = train_client(at, number=0, learning_rate=0.5, momentum=0.0, share=1 / 6)
    assert reply.state["weight"].flatten().tolist() == [0.25, -0.25]
    assert (reply.gradient_samples, reply.samples) == (1, 5)


def test_a_part_of_a_round_is_rounded_up_and_all_of_it_has_its_own_draws() -> None:
    # Two epochs of three batches: 0.4 of six steps is 2.4, so three; all are six, in passes 6 and 7
    # of round 3.
    at, passes = side()
    part = train_client(at, number=3, learning_rate=0.5, momentum=0.0, share=0.4)
    assert (part.gradient_samples, passes) == (3, [6])
    at, passes = side()
    whole = train_client(at, number=3, learning_rate=0.5, momentum=0.0)
    assert (whole.gradient_samples, passes) == (6, [6, 7])


def test_momentum_goes_further_and_the_same_call_gives_the_same_digest() -> None:
    ends = [
        train_client(side()[0], number=1, learning_rate=0.5, momentum=momentum).state
        for momentum in (0.9, 0.9, 0.0)
    ]
    assert states.digest(ends[0]) == states.digest(ends[1])
    assert states.norm(ends[0]) > states.norm(ends[2])


def test_batches_of_an_epoch_are_counted_up() -> None:
    assert batches_per_epoch(side()[0]) == 3
