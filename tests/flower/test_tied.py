"""Networks that share parameters: all names of one hold the same, in every round."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from harness.flower.inprocess import InProcess
from harness.flower.small import (
    CLASSES,
    FEATURES,
    NOW,
    OPTIONS,
    STEP,
    Federation,
    load_data,
    strategy,
)
from secede import state as states
from secede.erasure.defences.guard import Guard
from secede.flower import ClientErasure, Store, erase, recording


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(FEATURES, CLASSES, bias=False)
        self.b = nn.Linear(FEATURES, CLASSES, bias=False)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.a(x) + self.b(x)
        return out


def train_here(message: Message, context: Context) -> Message:
    content: Any = message.content
    sent = content["arrays"].to_torch_state_dict()
    assert torch.equal(sent["a.weight"], sent["b.weight"])
    model = Tied()
    model.load_state_dict(sent)
    x, y = load_data(context)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for start in range(0, len(y), 16):
        optimiser.zero_grad()
        part = slice(start, start + 16)
        nn.functional.cross_entropy(model(x[part]), y[part]).backward()
        optimiser.step()
    metrics = MetricRecord({"num-examples": len(y)})
    update = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(update, reply_to=message)


@pytest.mark.parametrize("method", ["projected-ascent", "weight-negation"])
def test_a_network_with_shared_parameters_is_erased_from(tmp_path: Path, method: str) -> None:
    erasure = ClientErasure(Tied, load_data, consent=True)
    app = ClientApp(mods=[erasure.mod])
    app.train()(train_here)
    federation = Federation(tmp_path, app=erasure.register(app))
    store = Store(tmp_path / "home", Tied, name="north", clock=lambda: NOW)
    torch.manual_seed(0)
    recording(strategy(), store, online_timeout=0.3).start(
        federation.grid(),
        ArrayRecord(Tied().state_dict()),
        num_rounds=2,
        timeout=5,
        train_config=ConfigRecord({"lr": 0.1}),
    )
    settings = {"projected-ascent": STEP} if method == "projected-ascent" else {}
    how = replace(OPTIONS, methods=(method,), settings=settings, max_server_rounds=8)
    grid: InProcess = federation.grid()
    outcome = erase(
        grid,
        strategy(),
        store,
        leaver="name:site-1",
        trigger="other",
        options=how,
        round_timeout=0.4,
        online_timeout=0.2,
        pause=0.01,
    )
    assert (outcome.state, outcome.method) == ("promoted", method), outcome.failures
    found = store.last_model()
    assert found is not None
    assert torch.equal(found["a.weight"], found["b.weight"])
    assert not any(line.startswith("left out") for line in federation.told)


def test_the_guard_lets_the_further_names_follow_the_first() -> None:
    def fresh(number: int) -> nn.Module:
        torch.manual_seed(number)
        return Tied()

    model = fresh(99).state_dict()
    returned = {name: value + 0.01 for name, value in model.items()}
    safe, report = Guard(global_state=model, fresh_model=fresh, min_distance=0.0).check(returned)
    assert torch.equal(safe["a.weight"], returned["a.weight"])
    assert torch.equal(safe["b.weight"], returned["a.weight"])
    assert report.restored == 0
    assert report.digest == states.digest(safe)


def test_shared_parameters_are_those_of_the_first_name() -> None:
    shared = states.aliases(Tied())
    assert shared == {"b.weight": "a.weight"}
    one, two = torch.ones(1), torch.zeros(1)
    assert states.tied({"a.weight": one, "b.weight": two}, shared)["b.weight"] is one
    assert states.tied({"b.weight": two}, shared)["b.weight"] is two
