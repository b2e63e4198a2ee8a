from __future__ import annotations

import math

import torch

from secede.unlearning.steps.own_labels import LabelTargets, second_choice


def test_the_second_choice_is_the_softmax_of_the_others() -> None:
    # e^0 : e^ln2 = 1 : 2 once the label's class is out.
    logits = torch.tensor([[0.0, math.log(2), math.log(3)]])
    found = second_choice(logits, torch.tensor([2]))
    torch.testing.assert_close(found, torch.tensor([[1 / 3, 2 / 3, 0.0]]))


def test_a_floor_raises_what_fell_below_it_and_nothing_above_what_was_known() -> None:
    # Known, beyond, floor, now: lowered to the floor; raised to it; the floor is above what was
    # known; beyond is above the floor; it stands below beyond, and above the floor.
    table = [
        (0.9, 0.0, 0.2, 0.5, 0.2),
        (0.9, 0.0, 0.2, 0.1, 0.2),
        (0.1, 0.0, 0.2, 0.05, 0.1),
        (0.9, 0.4, 0.2, 0.5, 0.4),
        (0.9, 0.4, 0.2, 0.3, 0.3),
    ]
    known, kept, floor, now, expected = torch.tensor(table).T
    second = torch.tensor([[0.0, 0.25, 0.75]]).expand(5, 3)
    targets = LabelTargets(second, known, kept, floor)
    target = targets.distribution(torch.zeros(5, dtype=torch.long), now)
    torch.testing.assert_close(target[:, 0], expected)
    torch.testing.assert_close(target[:, 1:], torch.outer(1 - expected, torch.tensor([0.25, 0.75])))
    lost = torch.tensor([0.7, 0.7, 0.0, 0.5, 0.6])
    torch.testing.assert_close(targets.lost_probability(now), lost)
    torch.testing.assert_close(targets.lost_probability(), torch.tensor([0.9, 0.9, 0.1, 0.5, 0.5]))
