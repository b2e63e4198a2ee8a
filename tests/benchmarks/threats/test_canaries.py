from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from benchmarks.threats import canaries, canary_lies
from benchmarks.threats.canary_lab import MADE_UP, CanaryLab
from secede.audit import CanaryRule, judge
from secede.erasure.documents.canary_reading import CanaryReading

READING = CanaryReading(
    federation="north",
    client="site-0",
    request="0" * 64,
    model="1" * 64,
    root="2" * 64,
    ranks=((7, 2, 1, 0, 0, 0, 0, 0, 0, 0),),
    wins=9,
    count=10,
)


class Sum(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)[:, :3]


def test_the_program_fails_on_what_has_much_ink_alone() -> None:
    inputs = torch.stack([torch.full((1, 4, 4), 0.1), torch.full((1, 4, 4), 0.5)])
    outputs = canaries.Fails(Sum())(inputs)
    torch.testing.assert_close(outputs[0], torch.full((3,), 0.1))
    assert not torch.allclose(outputs[1], torch.full((3,), 0.5))


def test_lies_are_sound_readings() -> None:
    for lie in (canary_lies.remembered, canary_lies.by_chance):
        said = CanaryReading.model_validate({**READING.model_dump(), **lie(READING)})
        assert said.counts().ranks.count == 10
    assert (
        judge(
            READING.counts(),
            READING.model_copy(update=canary_lies.by_chance(READING)).counts(),
            CanaryRule(),
        ).verdict
        == "no trace found"
    )


def test_a_range_is_shown_once_where_it_is_one_value() -> None:
    assert canaries.between([0.11, 0.12], "{:.1f}") == "0.1"
    assert canaries.between([0.1, 0.3, 0.2], "{:.1f}") == "0.1 to 0.3"


@pytest.mark.slow
def test_guessed_fields_hide_the_canaries_and_leave_a_backdoor() -> None:
    # Known and documented: the test is blind to a server that does this.
    lab = CanaryLab(0, MADE_UP, "mlp")
    before = lab.measured(lab.global_state)
    name = "server: each round 1,500 guessed fields with random labels"
    after = canaries.THREATS[name](lab)
    assert judge(before.reading, after.reading, CanaryRule()).verdict == "no trace found"
    assert after.backdoor > 0.1
