from __future__ import annotations

import pytest
import torch
from torch import nn

from harness import servers
from secede import state as states
from secede.unlearning.method import LocalTask
from secede.unlearning.methods.reference import Reference


def test_it_sends_the_mean_of_the_others() -> None:
    # Two clients: the mean of the others is what the other one sent.
    server = servers.server(sizes=(10, 30), rounds=1)
    own = server.engine.own[1].state  # type: ignore[attr-defined]
    result, _ = server.engine.ask(
        0, lambda side: Reference().unlearn(LocalTask.of(side)), global_state=server.global_state
    )
    for name, value in own.items():
        torch.testing.assert_close(result.state[name], value, atol=1e-6, rtol=1e-5)
    assert (result.report.steps, result.report.ended_by) == (0, "no-steps")


def test_its_distance_is_over_what_can_move() -> None:
    # Weights (0, 0) and (3, 4) are 5 apart; statistics that are 100 apart do not count.
    model = nn.BatchNorm1d(2, affine=True)
    nn.init.zeros_(model.weight)
    reference = states.of(model)
    own = {
        **reference,
        "weight": torch.tensor([3.0, 4.0]),
        "running_mean": torch.tensor([100.0, 0.0]),
    }
    task = LocalTask(
        reference=reference,
        own_state=own,
        model=model,
        fresh_model=lambda _: nn.BatchNorm1d(2),
        batches=lambda _size, _number: [],
        loss=nn.functional.cross_entropy,
    )
    assert Reference().unlearn(task).report.distance_to_own == pytest.approx(5)
