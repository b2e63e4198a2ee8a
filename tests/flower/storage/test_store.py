"""Whose a folder is, where a training may start and go on, and what becomes of other models.

Tests `flower/storage/register.py` and `flower/storage/round_log.py` too.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from flwr.app import ArrayRecord
from torch import nn

from harness.erasure import small
from harness.flower.dying import dying
from harness.flower.small import Federation, initial, load_model, strategy
from secede import state as states
from secede.erasure.signing.keys import generate_key_pair, load_private_key, load_public_key
from secede.errors import ConfigError, GuardError, RecordError
from secede.flower import Store, recording
from secede.flower.storage import register


def model_of(federation: Federation, place: int) -> ArrayRecord:
    digest = federation.store.log.rounds()[place].model
    state, _ = states.load(federation.store.home.model_path(digest))
    return ArrayRecord({name: state[name] for name in federation.store.template})


class Foreign(Store):
    """A store of another engine."""

    engine = "nvflare"


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_home_of_the_simulator_is_not_taken_over(tmp_path: Path) -> None:
    home = small.make(tmp_path)
    before = contents(home.path)
    with pytest.raises(ConfigError) as refused:
        Store(home.path, load_model)
    assert str(refused.value) == (
        f"{home.path} is the home of a federation of `secede federation init`, not of one on "
        "flower: choose another folder"
    )
    assert contents(home.path) == before


def test_a_home_of_another_engine_is_not_taken_over(federation: Federation) -> None:
    federation.train(2)
    federation.erase("name:site-1")
    with pytest.raises(
        ConfigError, match="of a federation on flower, not of one on nvflare: choose"
    ):
        Foreign(federation.store.path, load_model)
    assert federation.store.engine == "flower"  # its own goes on


def test_a_home_whose_engine_cannot_be_told_is_left_alone(federation: Federation) -> None:
    federation.train(1)
    path = federation.store.path / "recipe.json"
    path.write_text("{")
    with pytest.raises(RecordError, match=r"recipe\.json: damaged"):
        _ = federation.store


def test_a_home_under_another_name_stays_as_it_is(federation: Federation) -> None:
    federation.train(2)
    federation.erase("name:site-1")
    federation.train(1)
    other = Store(federation.store.path, load_model, name="south")
    before = contents(other.path)
    with pytest.raises(RecordError, match="is the home of 'north', not of 'south'"):
        register.register_federation(other)
    assert contents(other.path) == before


def test_a_model_of_a_round_before_an_erasure_is_not_trained_from(federation: Federation) -> None:
    federation.train(3)
    second, third = model_of(federation, 1), model_of(federation, 2)
    federation.erase("name:site-1")
    for old in (second, third):
        with pytest.raises(GuardError, match="which is retired because a client was erased"):
            federation.recording().start(federation.grid(), old, num_rounds=1, timeout=5)
    federation.train(1)
    assert federation.store.last_round() is not None


def test_rounds_between_two_erasures_carry_who_missed_post_training(
    federation: Federation,
) -> None:
    federation.train(2)
    federation.site("site-2").online = False
    federation.erase("name:site-1")
    federation.train(2)
    between = model_of(federation, 3)
    federation.site("site-2").online = True
    federation.erase("name:site-2")
    with pytest.raises(GuardError, match="which is retired"):
        federation.recording().start(federation.grid(), between, num_rounds=1, timeout=5)


def test_whom_a_model_carries_follows_from_where_it_started(federation: Federation) -> None:
    federation.train(1)
    federation.site("site-1").online = False
    recording(strategy(), federation.store, online_timeout=0.3, from_scratch=True).start(
        federation.grid(), ArrayRecord(initial()), num_rounds=1, timeout=5
    )  # anew, and without it
    first, second = federation.store.log.rounds()
    carried = federation.store.log.contributors()
    assert carried[first.model] == {"site-0", "site-1", "site-2", "site-3"}
    assert carried[second.model] == {"site-0", "site-2", "site-3"}


def test_a_training_of_another_length_is_not_the_one_that_was_cut(federation: Federation) -> None:
    with pytest.raises(KeyboardInterrupt):
        federation.train(5, grid=dying(federation, 4))
    with pytest.raises(ConfigError, match=r"5 rounds was cut short after round 3, this one has 3"):
        federation.train(3)
    assert len(federation.store.log.rounds()) == 3
    federation.train(5)
    assert len(federation.store.log.rounds()) == 5


def test_a_new_training_begins_when_asked_for(federation: Federation) -> None:
    with pytest.raises(KeyboardInterrupt):
        federation.train(5, grid=dying(federation, 3))
    anew = recording(strategy(), federation.store, online_timeout=0.3, from_scratch=True)
    anew.start(federation.grid(), ArrayRecord(initial()), num_rounds=2, timeout=5)
    rounds = federation.store.log.rounds()
    assert [(r.training, r.server_round) for r in rounds] == [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert rounds[2].start == states.digest(initial())


def test_after_a_round_without_updates_no_number_is_told_twice(federation: Federation) -> None:
    with pytest.raises(KeyboardInterrupt):
        federation.train(5, grid=dying(federation, 4, empty=2))
    told = set[object]()
    grid = federation.grid()
    grid.before = lambda message: told.add(message.content["config"]["server-round"])
    federation.train(5, grid=grid)
    assert told == {4, 5}
    assert [r.server_round for r in federation.store.log.rounds()] == [1, 3, 4, 5]
    assert [r.number for r in federation.store.log.rounds()] == [1, 2, 3, 4]


def test_a_key_made_beforehand_by_keygen_is_the_homes(tmp_path: Path) -> None:
    private, public = generate_key_pair(tmp_path / "home", "server")  # secede keygen server
    store = Store(tmp_path / "home", lambda: nn.Linear(2, 2))
    assert store.identity == load_public_key(public).keyid
    assert load_public_key(tmp_path / "home" / "keys" / "server.pub").keyid == store.identity
    assert load_private_key(private).public_key.keyid == store.identity
