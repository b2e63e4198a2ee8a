"""What fades is the same to the bit in the simulator, in Flower and in NVFlare's jobs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ArrayRecord
from torch import nn

from harness.flower import small
from secede import state as states
from secede.erasure.defences import unused_weights
from secede.erasure.defences.unused_weights import find_layers
from secede.erasure.documents.plan import Margins
from secede.federation.engine import aggregate
from secede.state import State
from secede.unlearning.method import POST_TRAINING

LEAVER, RETAINED = "name:site-1", (0, 2, 3)
# Wide, since what is compared is the way, not the model.
WIDE = Margins(overall=0.9, per_class=0.99)
OPTIONS = replace(small.OPTIONS, max_rounds=3, min_rounds=3, margins=WIDE)
Seen = list[tuple[State, State, int, State]]  # mean, start, updates that tell, what is left


def load_model() -> nn.Module:
    """Return a network with two layers before the last one."""
    return nn.Sequential(
        nn.Linear(small.FEATURES, 16),
        nn.ReLU(),
        nn.Linear(16, 8),
        nn.ReLU(),
        nn.Linear(8, small.CLASSES),
    )


@pytest.fixture(autouse=True)
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    """Federations of that network; what faded in each."""
    monkeypatch.setattr(small, "load_model", load_model)
    found, genuine = Seen(), unused_weights.remove_unused_weights

    def spy(state: State, start: State, updates: list[State], **how: Any) -> unused_weights.Removal:
        faded = genuine(state, start, updates, **how)
        assert how["weights"].keys() == {"0.weight", "2.weight"}
        found.append((state, start, len(updates), faded.state))
        return faded

    monkeypatch.setattr(unused_weights, "remove_unused_weights", spy)
    return found


def erased(federation: small.Federation) -> str:
    """Train and erase in Flower; return the new model's digest."""
    begin = ArrayRecord(small.initial())
    federation.recording().start(federation.grid(), begin, num_rounds=3, timeout=5)
    outcome = federation.erase(LEAVER, options=OPTIONS)
    assert (outcome.rung, outcome.failures) == ("local-step", ())
    assert outcome.model is not None
    return outcome.model


def test_the_simulator_ends_at_flowers_digest(seen: Seen, tmp_path: Path) -> None:
    model = erased(small.Federation(tmp_path))
    ((mean, start, shown, left),) = seen
    engine, state = small.simulator(), start
    for number in (1, 2, 3):
        reply = engine.train_round(state, RETAINED, phase=POST_TRAINING, number=number)
        before, state = state, aggregate(reply.updates)
        if number == 1:
            assert states.digest(state) == states.digest(mean)
            weights = find_layers(load_model(), small.CLASSES).weights
            updates = [update.state for update in reply.updates]
            assert len(updates) == shown
            faded = unused_weights.remove_unused_weights(
                state, before, updates, trainable=state.keys(), weights=weights
            )
            assert faded.share > 0
            state = faded.state
            assert states.digest(state) == states.digest(left) != states.digest(mean)
    assert states.digest(state) == model


def test_nvflare_ends_at_flowers_digest(
    seen: Seen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("nvflare")
    from harness.nvflare import inprocess
    from harness.nvflare import small as flare

    monkeypatch.setattr(flare, "load_model", load_model)
    job = inprocess.make(tmp_path / "flare", monkeypatch)
    job.run(rounds=3)
    job.erase(LEAVER, max_rounds=3, min_rounds=3, margins=WIDE.model_dump())
    assert job.store.serving_digest() == erased(small.Federation(tmp_path / "flower"))
    (mine, other) = ([states.digest(one[0]), states.digest(one[3])] for one in seen)
    assert mine == other
    assert mine[0] != mine[1]
