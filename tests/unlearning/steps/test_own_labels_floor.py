from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from secede import state as states
from secede.federation.engine import Batch
from secede.unlearning.steps.own_labels import natural_floor


def two_classes(first: int, second: int, size: float = 4.0) -> tuple[nn.Module, list[Batch]]:
    """A network with logits (size, 0, 0) and (0, size, 0) for samples of class 0 and 1."""
    model = nn.Linear(2, 3, bias=False)
    states.load_into(model, {"weight": torch.tensor([[size, 0.0], [0.0, size], [0.0, 0.0]])})
    inputs = torch.eye(2).repeat_interleave(torch.tensor([first, second]), dim=0)
    labels = torch.tensor([0] * first + [1] * second)
    return model, [(inputs[:7], labels[:7]), (inputs[7:], labels[7:])]


def test_a_network_that_hardly_errs_keeps_hardly_anything() -> None:
    # Each other class has r = 1 / (e^4 + 2), 2r towards both, and keeps 2r / (1/2) of r.
    model, samples = two_classes(150, 50)
    r = 1 / (math.exp(4) + 2)
    torch.testing.assert_close(natural_floor(model, samples, 3), torch.full((3,), 4 * r * r))


def test_a_floor_is_never_above_chance_and_lower_where_few_samples_tell() -> None:
    # With logits (-4, 0, 0) a sample of class 0 is answered with the other two: almost 1/2 each.
    model, samples = two_classes(100, 100, size=-4.0)
    torch.testing.assert_close(natural_floor(model, samples, 3), torch.full((3,), 1 / 3))
    # 5 samples that are not of class 1 count as if 45 more were answered rightly.
    model, samples = two_classes(5, 100, size=-4.0)
    rate = 5 / 50 * 1 / (math.exp(-4) + 2)
    assert natural_floor(model, samples, 3)[1] == pytest.approx(rate * 4 * rate)


def test_who_has_one_label_only_has_no_floor_for_it() -> None:
    model = nn.Linear(1, 2)
    samples = [(torch.ones(60, 1), torch.ones(60, dtype=torch.long))]
    assert natural_floor(model, samples, 2)[1] == 0
