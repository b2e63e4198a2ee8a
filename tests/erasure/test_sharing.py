from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from erasure import small
from secede.erasure import sharing
from secede.erasure.home import Home
from secede.erasure.journal import Journal
from secede.erasure.lineage import Lineage
from secede.erasure.predicate import Scope


@pytest.fixture(scope="module")
def founded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield small.make(tmp_path_factory.mktemp("founded"))
    torch.set_num_threads(threads)


@pytest.fixture
def home(founded: Home, tmp_path: Path) -> Home:
    return small.copy(founded, tmp_path / "home")


def test_a_later_leaver_s_scope_has_the_rounds_after_the_first_erasure(home: Home) -> None:
    small.erase(home, small.receive(home).id, how=small.wishes(least_rounds=3))
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
    how = small.wishes(least_rounds=1, mean="median")
    small.erase(home, small.receive(home).id, how=how)
    small.erase(home, small.receive(home, "site-1").id)
    assert small.told(home, 2)["scope"]["weight"] == pytest.approx(1 / 3)


def test_training_that_went_on_since_is_not_counted_down(home: Home) -> None:
    small.erase(home, small.receive(home).id, how=small.wishes(least_rounds=3))
    rounds = small.told(home)["method"]["rounds"]
    trained = Scope(first_round=1, last_round=40, rounds=30, weight=0.5)
    with Journal(home.journal) as journal, Lineage(home.registry) as registry:
        found = sharing.scope(home, journal, registry, trained, "site-1")
        nobody = sharing.scope(home, journal, registry, trained, "site-9")
    assert (found.last_round, found.rounds, found.weight) == (40, 30 + rounds, 0.5)
    assert nobody == trained
