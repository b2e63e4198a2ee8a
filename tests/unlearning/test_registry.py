from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from harness import servers
from secede import state as states
from secede.unlearning import registry
from secede.unlearning.method import LocalTask
from secede.unlearning.methods.fine_tune import FineTune
from secede.unlearning.methods.reference import Reference
from secede.unlearning.methods.retrain import Retrain

METHODS_FOLDER = Path(registry.__file__).parent / "methods"


@pytest.mark.parametrize("name", registry.METHODS)
def test_a_methods_name_is_its_files_name_with_dashes(name: str) -> None:
    assert (METHODS_FOLDER / f"{name.replace('-', '_')}.py").is_file()
    entry = registry.METHODS[name]
    assert entry.summary
    assert entry.source


def test_what_runs_at_the_leaver_needs_it_online() -> None:
    for entry in registry.METHODS.values():
        assert entry.needs.leaver_online or entry.runs_at != "leaver"


def test_needs_are_told_in_words() -> None:
    assert registry.Needs().words() == ()
    needs = registry.Needs(leaver_online=True, history=True)
    assert needs.words() == ("the leaver online", "stored history")


def test_fine_tuning_starts_at_the_global_state_and_retraining_at_a_fresh_one() -> None:
    server = servers.server(rounds=1)
    assert FineTune().start(server).state is server.global_state
    fresh = states.digest(server.fresh_state())
    assert states.digest(Retrain().start(server).state) == fresh


def test_the_reference_is_sent_back_untouched() -> None:
    model = nn.Linear(1, 2, bias=False)
    task = LocalTask(
        reference={"weight": torch.zeros(2, 1)},
        own_state={"weight": torch.tensor([[3.0], [4.0]])},
        model=model,
        fresh_model=lambda _: model,
        batches=lambda _size, _number: [],
        loss=nn.functional.cross_entropy,
    )
    result = Reference().unlearn(task)
    assert states.digest(result.state) == states.digest(task.reference)
    assert (result.report.steps, result.report.ended_by) == (0, "no-steps")
    assert result.report.distance_to_own == 5.0
    assert result.gradient_samples == 0
