"""Tests `erasure/backend.py`, `simulation/commitments.py`, `simulation/new_federation.py` too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from harness.erasure import small
from secede import state as states
from secede.erasure.defences.gate import tally
from secede.erasure.documents.data_commitment import check_commitment
from secede.erasure.signing.keys import Keyring, load_private_key
from secede.erasure.storage.home import Home
from secede.erasure.storage.ledger import Ledger
from secede.erasure.storage.model_registry import ModelRegistry
from secede.errors import ConfigError, RecordError, SilentError
from secede.experiments import presets
from secede.federation.engine import OwnState
from secede.simulation.backend import SimulatedBackend, Sites
from secede.simulation.new_federation import create_federation as found
from secede.unlearning.client_tasks import CountRight


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return small.make(tmp_path_factory.mktemp("founded"))


def test_a_home_holds_all_that_an_erasure_needs(home: Home) -> None:
    federation = home.federation
    names = ["site-0", "site-1", "site-2", "site-3"]
    assert [client.name for client in federation.clients] == names
    assert sum(client.scope.weight for client in federation.clients) == pytest.approx(1)
    assert list(Keyring.load(home.keys)) == ["server", *names]
    load_private_key(home.path / "server.key")
    with ModelRegistry(home.registry, read_only=True) as registry:
        (model,) = registry.models()
    assert (model.status, model.round, list(model.clients)) == ("serving", 4, names)
    assert states.digest(states.load(home.model_path(model.digest))[0]) == model.digest
    with Ledger(home.ledger, read_only=True) as ledger:
        assert [row.kind for row in ledger.rows()] == [
            "model",
            "delivered",
            "keys",
            "federation",
        ]


def test_founding_again_after_a_kill_gives_the_same_home(tmp_path: Path, home: Home) -> None:
    other = small.make(tmp_path)
    assert small.serving(other) == small.serving(home)
    with pytest.raises(ConfigError, match="home already"):
        small.make(tmp_path)
    before = {p.name: p.read_bytes() for p in (other.path / "keys").iterdir()}
    (other.path / "federation.json").unlink()  # as a kill leaves it
    again = small.make(tmp_path)
    assert small.serving(again) == small.serving(other)
    assert {p.name: p.read_bytes() for p in (again.path / "keys").iterdir()} == before
    with Ledger(again.ledger, read_only=True) as ledger:
        assert ledger.verify().number == 4


def test_each_client_can_show_later_what_it_was_trained_on(home: Home) -> None:
    ground = SimulatedBackend(home)
    for client in home.federation.clients:
        samples = ground._simulator.clients[client.number]
        rows = [
            x.numpy().tobytes() + y.numpy().tobytes()
            for x, y in zip(samples.x, samples.y, strict=True)
        ]
        salt = (home.path / "sites" / f"{client.name}.salt").read_bytes()
        assert client.scope.commitment is not None
        check_commitment(client.scope.commitment, rows, salt)


def test_the_ground_is_the_same_on_every_start(home: Home) -> None:
    one, other = SimulatedBackend(home), SimulatedBackend(home)
    for name in one.clients:
        mine, theirs = one.last_update(name), other.last_update(name)
        assert mine is not None
        assert theirs is not None
        assert states.digest(mine.state) == states.digest(theirs.state)
    assert states.digest(states.of(one.fresh_model(2))) == states.digest(
        states.of(other.fresh_model(2))
    )
    state = states.load(home.model_path(small.serving(home)))[0]
    assert tally(one.engine, [1], state).counts == tally(other.engine, [1], state).counts
    assert (one.classes, one.training_rounds, one.scenario) == (3, 4, "backdoor")


def test_who_is_gone_or_slow_is_silent(home: Home) -> None:
    state = states.load(home.model_path(small.serving(home)))[0]
    ground = SimulatedBackend(home, gone=["site-0"])
    assert not ground.situation("site-0").leaver_online
    assert ground.situation("site-1").leaver_online
    with pytest.raises(SilentError, match="'site-0' does not answer"):
        ground.engine.ask(0, CountRight(), global_state=state)
    assert dict(ground.tally([0], state).left_out) == {0: "silent"}
    server = SimulatedBackend(home).server("site-0", ["site-1"], state, 1e-9)
    with pytest.raises(SilentError, match="more than 1e-09 seconds"):
        server.engine.ask(0, CountRight(), global_state=state)
    assert 1 in tally(server.engine, [1], state).counts
    ground.set_timeout(1e-9)
    assert dict(ground.tally([1], state).left_out) == {1: "silent"}
    reply = ground.engine.train_round(state, [0, 1], phase="post-training", number=1)
    assert [update.client for update in reply.updates] == [1]


def test_the_server_counts_on_its_own_samples_by_class(home: Home) -> None:
    ground = SimulatedBackend(home)
    state = states.load(home.model_path(small.serving(home)))[0]
    found = ground.held_out(state)
    assert sum(found.samples) == 60
    (score,) = (s for s in ground.scores("site-1", state, state) if s.about == "usefulness")
    assert score.value == pytest.approx(sum(found.right) / 60)
    assert ground.samples("site-1") == len(ground._simulator.clients[1])


def test_a_changed_recipe_is_found(home: Home, tmp_path: Path) -> None:
    other = small.copy(home, tmp_path / "home")
    path = other.path / "recipe.json"
    recipe = json.loads(path.read_text())
    recipe["seed"] = 1
    path.write_text(json.dumps(recipe))
    with pytest.raises(RecordError, match="was changed"):
        SimulatedBackend(other)
    (other.path / "federation.json").unlink()
    with pytest.raises(ConfigError, match="no federation's home"):
        SimulatedBackend(other)


def test_a_sites_state_follows_the_model_that_was_promoted(tmp_path: Path) -> None:
    sites = Sites(tmp_path)
    old, new = ({"w": torch.tensor([value])} for value in (1.0, 2.0))
    sites.save("a", OwnState(old, 0.5), "")
    sites.save("a", OwnState(new, 0.25), "round-3", is_next=True)
    for _ in range(2):  # doing it again changes nothing
        sites.commit("a", "round-3")
        own = sites.load("a")
        assert own is not None
        assert (float(own.state["w"]), own.weight) == (2.0, 0.25)
    sites.save("a", OwnState(old, 0.5), "round-1", is_next=True)
    for _ in range(2):
        sites.commit("a", None)  # no round made the new model
        own = sites.load("a")
        assert own is not None
        assert (float(own.state["w"]), own.weight) == (2.0, 0.0)
    sites.delete("a")
    sites.delete("a")
    assert sites.load("a") is None
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_cannot_be_used_is_refused_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="federation 'a b' cannot be used"):
        found(tmp_path / "home", presets.load("demo"), name="a b", now=small.NOW)
    assert not (tmp_path / "home").exists()
