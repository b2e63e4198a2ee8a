from __future__ import annotations

import pytest

from harness.erasure import small
from secede import state as states
from secede.erasure.documents.receipt import Scope
from secede.erasure.receipts.build import client_scope
from secede.erasure.storage.home import Home
from secede.erasure.storage.journal import Journal
from secede.erasure.storage.model_registry import Candidate, ModelRegistry


def test_a_later_leaver_s_scope_has_the_rounds_after_the_first_erasure(home: Home) -> None:
    small.erase(home, small.receive(home).id, how=small.options(min_rounds=3))
    rounds = small.told(home)["method"]["rounds"]
    first = small.told(home)["scope"]
    assert (first["last_round"], first["rounds"]) == (4, 4)
    small.erase(home, small.receive(home, "site-1").id)
    scope = small.told(home, 2)["scope"]
    assert rounds >= 3
    assert (scope["first_round"], scope["last_round"], scope["rounds"]) == (
        1,
        4 + rounds,
        4 + rounds,
    )
    weights = {c.name: c.scope.weight for c in home.federation.clients}
    left = sum(weights[name] for name in ("site-1", "site-2", "site-3"))
    assert scope["weight"] == pytest.approx(weights["site-1"] / left)
    commitment = home.federation.client("site-1").scope.commitment
    assert commitment is not None
    assert scope["commitment"] == commitment.model_dump()


def test_a_robust_mean_gives_everybody_the_same_share(home: Home) -> None:
    how = small.options(min_rounds=1, mean="median")
    small.erase(home, small.receive(home).id, how=how)
    small.erase(home, small.receive(home, "site-1").id)
    assert small.told(home, 2)["scope"]["weight"] == pytest.approx(1 / 3)


def test_training_that_went_on_since_is_not_counted_down(home: Home) -> None:
    small.erase(home, small.receive(home).id, how=small.options(min_rounds=3))
    rounds = small.told(home)["method"]["rounds"]
    trained = Scope(first_round=1, last_round=40, rounds=30, weight=0.5)
    with Journal(home.journal) as journal, ModelRegistry(home.registry) as registry:
        found = client_scope(home, journal, registry, trained, "site-1")
        nobody = client_scope(home, journal, registry, trained, "site-9")
    assert (found.last_round, found.rounds, found.weight) == (40, 30 + rounds, 0.5)
    assert nobody == trained


def train_on(home: Home, *clients: str, rounds: int) -> None:
    """Register a model that some clients trained from the one that serves."""
    with ModelRegistry(home.registry) as registry:
        before = registry.serving(small.NAME)
        assert before is not None
        state = states.load(home.model_path(before.digest))[0]
        after = {name: 1.01 * value for name, value in state.items()}
        states.save(after, home.model_path(states.digest(after)))
        made = Candidate(
            digest=states.digest(after),
            parent=before.digest,
            run=small.NAME,
            round=before.round + rounds,
            clients=clients,
        )
        registry.promote(made, small.NOW)


def test_a_client_that_trains_again_after_an_erasure_has_all_its_rounds(home: Home) -> None:
    def scope(trained: Scope, client: str) -> Scope:
        with Journal(home.journal) as journal, ModelRegistry(home.registry) as registry:
            return client_scope(home, journal, registry, trained, client)

    # Training 1 to 4; site-0 is erased in 5 and 6; then 7 to 9, which site-3 sits out.
    two = small.options(max_rounds=2, min_rounds=2)
    small.erase(home, small.receive(home).id, how=two)
    assert small.told(home)["method"]["rounds"] == 2
    train_on(home, "site-1", "site-2", rounds=3)
    again = Scope(first_round=1, last_round=9, rounds=7, weight=0.6)
    sat_out = Scope(first_round=1, last_round=4, rounds=4, weight=0.0)
    new = Scope(first_round=8, last_round=9, rounds=2, weight=0.1)
    assert scope(again, "site-1") == again.model_copy(update={"rounds": 9})
    # In the mean after the erasure it had a share, in the last one that made the model it has none.
    expected = Scope(first_round=1, last_round=6, rounds=6, weight=0.0)
    assert scope(sat_out, "site-3") == expected
    assert scope(new, "site-4") == new
    # site-2 is erased in 10 and 11: the last mean is of site-1 and site-3.
    small.erase(home, small.receive(home, "site-2").id, how=two)
    assert small.told(home, 2)["method"]["rounds"] == 2
    weights = {c.name: c.scope.weight for c in home.federation.clients}
    share = weights["site-1"] / (weights["site-1"] + weights["site-3"])
    found = scope(again, "site-1")
    assert (found.first_round, found.last_round, found.rounds) == (1, 11, 11)
    assert found.weight == pytest.approx(share)
    found = scope(sat_out, "site-3")
    assert (found.first_round, found.last_round, found.rounds) == (1, 11, 8)
    assert found.weight == pytest.approx(1 - share)
    with ModelRegistry(home.registry, read_only=True) as registry:
        serving = registry.serving(small.NAME)
        assert serving is not None
        assert (serving.round, serving.clients) == (11, ("site-1", "site-3"))
        assert registry.carriers("site-2") == registry.carriers("site-0") == ()
