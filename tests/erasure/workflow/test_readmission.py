"""What was erased does not come back: neither a retired model nor an old update."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from harness.erasure import small
from harness.erasure.liars import Liars
from harness.erasure.small import left_out, model
from secede import state as states
from secede.erasure.storage.home import Home
from secede.erasure.storage.model_registry import ModelRegistry
from secede.erasure.workflow.measurement import STALE
from secede.errors import GuardError
from secede.simulation.backend import SimulatedBackend
from secede.state import State


@pytest.mark.parametrize("exact", [True, False])
def test_a_retired_model_does_not_come_back(home: Home, exact: bool) -> None:
    first = model(home)
    small.erase(home, small.receive(home, "site-1").id)
    sent = first if exact else small_noise(first, 1e-3)
    ground = Liars(home, leaver=lambda _: sent)
    outcome = small.erase(home, small.receive(home, "site-0").id, ground=ground)
    assert outcome.state == "promoted"
    assert outcome.rung != "local-step"
    assert "served before" in outcome.failures[0].reason


def test_the_engine_takes_no_update_of_an_erased_client_or_from_a_retired_model(home: Home) -> None:
    first = model(home)
    small.erase(home, small.receive(home).id)
    engine = SimulatedBackend(home).engine
    with pytest.raises(GuardError, match="was erased"):
        engine.train_round(model(home), [0, 1], phase="training", number=9)
    with pytest.raises(GuardError, match="is retired"):
        engine.train_round(first, [1, 2], phase="training", number=9)
    assert not (home.path / "sites" / "site-0.next.safetensors").exists()
    assert len(engine.train_round(model(home), [1, 2], phase="training", number=9).updates) == 2


def test_a_round_asks_the_registry_about_every_update(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[tuple[str, str]]()
    plain = ModelRegistry.check_update

    def spy(self: ModelRegistry, client: str, base: str, **how: Any) -> None:
        if how["in_progress"] is not None:  # not the simulator's own look
            asked.append((client, base))
            if client == "site-2":
                raise GuardError("'site-2' was erased")
        plain(self, client, base, **how)

    monkeypatch.setattr(ModelRegistry, "check_update", spy)
    outcome = small.erase(home, small.receive(home).id, how=small.options(max_rounds=1))
    assert outcome.rung == "local-step"
    (guarded,) = [t for t in small.course(home).transitions if t.state == "guarded"]
    assert asked == [(f"site-{n}", guarded.details.ledger_model) for n in (1, 2, 3)]
    assert left_out(home) == {("site-2", "refused")}


def small_noise(state: State, size: float) -> State:
    draw = torch.Generator().manual_seed(0)
    noise = {n: torch.randn(v.shape, generator=draw) for n, v in state.items()}
    return states.shifted(state, noise, size / states.norm(noise))


def test_the_leaver_s_last_update_is_refused_from_others(home: Home) -> None:
    own, _ = states.load(home.path / "sites" / "site-0.safetensors")
    liars = Liars(home, who=(3,), update=lambda u: replace(u, state=own))
    outcome = small.erase(
        home, small.receive(home).id, ground=liars, how=small.options(min_rounds=1)
    )
    assert outcome.rung == "local-step"
    assert left_out(home) == {("site-3", "refused")}


@pytest.mark.parametrize("noise", [0.0, 1e-4])
def test_an_erased_client_s_old_update_is_refused_later_too(home: Home, noise: float) -> None:
    own, _ = states.load(home.path / "sites" / "site-0.safetensors")
    draw = torch.Generator().manual_seed(0)
    again = {n: v + noise * torch.randn(v.shape, generator=draw) for n, v in own.items()}
    small.erase(home, small.receive(home).id)
    liars = Liars(home, who=(3,), update=lambda u: replace(u, state=again))
    entry = small.receive(home, "site-1")
    small.erase(home, entry.id, ground=liars, how=small.options(min_rounds=1))
    assert left_out(home, entry.id) == {("site-3", "refused")}
    told = small.told(home, entry.id)["limits"]
    assert any("does not use was taken out" in limit for limit in told)
    assert STALE in told
