from __future__ import annotations

from pathlib import Path

import pytest
import torch

from harness import audits
from secede.experiments.config import Training
from secede.experiments.ensembles import variants
from secede.experiments.setup import Federation
from secede.verification import evaluate


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    job = audits.job(tmp_path)
    return job.federation(0, job.material.member(0))


def test_weights_are_rounded_to_fifteen_levels_and_biases_stay() -> None:
    # The step is 0.7 / 7 = 0.1.
    state = {
        "weight": torch.tensor([[0.7, -0.34], [0.04, -0.06]]),
        "bias": torch.tensor([0.123, 0.456]),
        "count": torch.tensor(3),
        "zero": torch.zeros(2, 2),
    }
    found = variants.quantised(state)
    torch.testing.assert_close(found["weight"], torch.tensor([[0.7, -0.3], [0.0, -0.1]]))
    for name in ("bias", "count", "zero"):
        assert torch.equal(found[name], state[name])
    assert float(state["weight"][0, 1]) == pytest.approx(-0.34)


def test_a_quantised_tensor_has_no_more_than_fifteen_values() -> None:
    drawn = torch.randn(40, 40, generator=torch.Generator().manual_seed(0))
    assert len(variants.quantised({"w": drawn})["w"].unique()) <= 15


def steps(federation: Federation, target: float) -> int:
    return variants.relearning_steps(
        federation,
        federation.engine.initial_state("initial"),
        federation.engine.clients[federation.leaver],
        Training(batch_size=10, learning_rate=0.1),
        0,
        target=target,
    )


def test_what_is_known_needs_no_step_and_what_is_not_needs_more_the_lower_the_loss(
    federation: Federation,
) -> None:
    assert steps(federation, float("inf")) == 0
    model = federation.engine.fresh_model("initial")
    now = evaluate(model, federation.engine.clients[federation.leaver]).loss().value
    few, more = steps(federation, now - 0.02), steps(federation, now - 0.2)
    assert 0 < few <= more
    assert few % variants.CHECK_STEPS == 0


def test_a_loss_that_is_never_reached_counts_with_all_steps(federation: Federation) -> None:
    assert steps(federation, -1.0) == 10 * variants.RELEARNING_EPOCHS
