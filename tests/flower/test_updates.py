"""What a client keeps of itself: for whom, how long, and that writers do not meet."""

from __future__ import annotations

import json
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, Message

from flower.small import Federation, client_app, initial, strategy
from secede import state as states
from secede.errors import ConfigError, StateError
from secede.flower import Store, recording
from secede.flower.updates import Updates

A, B = "a" * 32, "b" * 32


def keep(updates: Updates, value: float, **options: Any) -> str:
    state = {"w": torch.full((3,), value)}
    told = {"run": "1", "number": int(value), "samples": 4, **options}
    return str(updates.put(state, **told).digest)


def disk(federation: Federation, n: int) -> Updates:
    return Updates(federation.folder / f"disk-{n}" / f"partition-{n}")


def test_rounds_for_another_home_evict_nothing(tmp_path: Path) -> None:
    updates = Updates(tmp_path)
    mine = [keep(updates, value, home=A) for value in (1, 2)]
    for value in (3, 4, 5):
        keep(updates, value, home=B)
    assert [kept.round for kept in updates.all()] == [5, 4, 2, 1]
    assert all(updates.get(digest) is not None for digest in mine)
    same = keep(updates, 2, home=B)  # the same values: one file, two entries
    assert updates.forget(B) == 2
    assert updates.get(same) is not None
    assert [kept.home for kept in updates.all()] == [A, A]


def test_made_up_homes_do_not_fill_the_disk(tmp_path: Path) -> None:
    updates = Updates(tmp_path)
    for value in range(40):
        keep(updates, value, home=f"{value:032x}")
    assert len(updates.all()) == 16
    assert len(list(tmp_path.glob("*.safetensors"))) == 16


def test_two_clients_in_one_folder_are_refused(tmp_path: Path) -> None:
    updates = Updates(tmp_path)
    keep(updates, 1, home=A, node="5")
    with pytest.raises(ConfigError, match="clients 5 and 6 both keep their updates in"):
        keep(updates, 2, home=A, node="6")
    keep(updates, 2, home=A, node="6", run="2")  # a simulation's next run has new ids
    keep(updates, 3, home=B, node="7")  # another federation on the same machine
    assert len(updates.all()) == 3


def test_writers_wait_for_each_other(tmp_path: Path) -> None:
    faults = list[str]()

    def write(start: int) -> None:
        for value in range(start, start + 25):
            try:
                state = {"w": torch.full((20_000,), float(value))}
                Updates(tmp_path).put(state, run="1", number=value, samples=1.0, home=A)
            except Exception as error:
                faults.append(str(error))

    threads = [threading.Thread(target=write, args=(1000 * n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    updates = Updates(tmp_path)
    assert len(updates.all()) == 2
    assert all(updates.get(str(kept.digest)) is not None for kept in updates.all())
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


# Not hashed by the client


def keep_unhashed(updates: Updates, value: float, **options: Any) -> str:
    """Keep an update without hashing it; return the digest that a server would find."""
    assert keep(updates, value, home=A, hashed=False, **options) == "None"
    return states.digest({"w": torch.full((3,), value)})


def test_an_update_that_was_not_hashed_is_found_by_its_digest(tmp_path: Path) -> None:
    updates = Updates(tmp_path)
    first, second = (keep_unhashed(updates, value) for value in (1, 2))
    for value, digest in ((1.0, first), (2.0, second)):
        assert (updates.get(digest) or {})["w"].tolist() == [value] * 3
    assert updates.get("0" * 64) is None
    assert (updates.newest(A) or {})["w"].tolist() == [2.0] * 3
    assert updates.newest(B) is None


def test_the_next_round_tells_its_digest_and_it_stays_as_long_as_it_serves(tmp_path: Path) -> None:
    updates = Updates(tmp_path)
    first = keep_unhashed(updates, 1)
    for value in (2, 3, 4):  # of rounds that the server never ended
        keep_unhashed(updates, value, serving=first)
    assert [(kept.round, kept.digest) for kept in updates.all()] == [
        (4, None),
        (3, None),
        (1, first),
    ]
    fourth = states.digest({"w": torch.full((3,), 4.0)})
    keep_unhashed(updates, 5, serving=fourth)
    assert [(kept.round, kept.digest) for kept in updates.all()] == [(5, None), (4, fourth)]
    assert len(list(tmp_path.glob("*.safetensors"))) == 2
    assert updates.get(first) is None


def test_a_wrong_digest_from_the_server_hides_no_update(tmp_path: Path) -> None:
    updates = Updates(tmp_path)
    first = keep_unhashed(updates, 1)
    keep_unhashed(updates, 2, serving="0" * 64)
    assert updates.all()[1].digest == "0" * 64
    assert (updates.get(first) or {})["w"].tolist() == [1.0] * 3
    with pytest.raises(StateError, match="not those that were written"):
        updates.get("0" * 64)


def test_an_update_that_was_damaged_is_not_given_out(tmp_path: Path) -> None:
    updates = Updates(tmp_path)
    first = keep_unhashed(updates, 1)
    (path,) = tmp_path.glob("*.safetensors")
    states.save({"w": torch.full((3,), 9.0)}, path)
    assert updates.get(first) is None  # none here has this digest
    keep_unhashed(updates, 2, serving=first)
    with pytest.raises(StateError, match="not those that were written"):
        updates.get(first)
    path.write_bytes(b"{")
    with pytest.raises(StateError, match="not a readable safetensors file"):
        updates.get(first)


def test_an_index_of_an_older_version_is_read(tmp_path: Path) -> None:
    updates = Updates(tmp_path)
    old = keep(updates, 1, home=A)
    path = tmp_path / "index.json"
    index = json.loads(path.read_text())
    for entry in index["updates"]:
        assert entry.pop("file") == ""
    path.write_text(json.dumps(index))
    keep_unhashed(updates, 2, serving=old)
    assert updates.get(old) is not None
    assert [kept.round for kept in updates.all()] == [2, 1]


@pytest.mark.parametrize("step", range(1, 6))
def test_a_kill_at_any_step_leaves_the_old_updates_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    updates = Updates(tmp_path)
    digests = [keep_unhashed(updates, value) for value in (1, 2)]
    calls = list[str]()

    def killed(name: str, real: Any) -> Any:
        def call(*given: Any) -> Any:
            calls.append(name)
            if len(calls) == step:
                raise KeyboardInterrupt
            return real(*given)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", killed("sync", os.fsync))
        patch.setattr(os, "replace", killed("replace", os.replace))
        with pytest.raises(KeyboardInterrupt):
            keep_unhashed(updates, 3, serving=digests[1])
    # The update is whole and in its place before the index names it.
    assert calls == ["sync", "replace", "sync", "replace", "sync"][:step]
    assert updates.get(digests[1]) is not None
    assert [kept.round for kept in updates.all()] == ([3, 2] if step == 5 else [2, 1])
    keep_unhashed(updates, 4, serving=digests[1])
    assert len(list(tmp_path.glob("*.safetensors"))) == len(updates.all())


# In a federation


def serving(federation: Federation, n: int) -> str:
    last = federation.store.last()
    assert last is not None
    (digest,) = (each.digest for each in last.clients if each.client == f"site-{n}")
    assert digest is not None
    return digest


def cut(federation: Federation, store: Store) -> None:
    """Train up to the aggregate, and no further."""
    found = recording(strategy(), store, wait_seconds=0.3, from_scratch=True)

    def killed(*_: Any) -> Any:
        raise KeyboardInterrupt

    found.aggregate_train = killed  # type: ignore[method-assign,assignment]
    grid = federation.grid()
    begin = federation.store.model() or initial()
    shifted = {name: value + 0.01 * grid.run_id for name, value in begin.items()}
    with pytest.raises(KeyboardInterrupt):
        found.start(grid, ArrayRecord(shifted), num_rounds=1, timeout=5)


def test_trainings_that_were_cut_do_not_cost_the_serving_update(federation: Federation) -> None:
    federation.train(1)
    for _ in range(3):
        cut(federation, federation.store)
    assert len(disk(federation, 1).all()) == 3
    assert disk(federation, 1).get(serving(federation, 1)) is not None
    assert federation.erase().rung == "local-step"


def test_rounds_into_another_home_do_not_cost_the_serving_update(federation: Federation) -> None:
    federation.train(1)
    other = Store(federation.folder / "other", federation.store.load_model, tell=federation.told)
    shifted = {name: value + 1 for name, value in initial().items()}
    recording(strategy(), other, wait_seconds=0.3).start(
        federation.grid(), ArrayRecord(shifted), num_rounds=3, timeout=5
    )
    assert disk(federation, 1).get(serving(federation, 1)) is not None
    assert federation.erase().rung == "local-step"


def test_a_users_function_sees_nothing_of_what_we_tell(tmp_path: Path) -> None:
    outer, inner = set[tuple[str, ...]](), set[tuple[str, ...]]()

    def look(seen: set[tuple[str, ...]]) -> Any:
        def mod(message: Message, context: Any, call_next: Any) -> Message:
            seen.add(tuple(sorted(message.content)))
            found: Message = call_next(message, context)
            return found

        return mod

    Federation(tmp_path, app=client_app([look(outer)], [look(inner)])).train(1)
    assert outer == {("arrays", "config", "secede.keep")}
    assert inner == {("arrays", "config")}


def test_an_erased_client_deletes_its_updates_for_this_home(federation: Federation) -> None:
    federation.train(2)
    keep(disk(federation, 1), 7, home=B)
    federation.erase()
    assert [kept.home for kept in disk(federation, 1).all()] == [B]
    assert disk(federation, 2).all() != ()
    assert federation.told.has("'site-1' has deleted its own updates, 2 of them")


def test_an_erased_client_that_is_away_is_told_when_it_is_back(federation: Federation) -> None:
    federation.train(2)

    def vanish(question: Message, reply: Message) -> Message | None:
        return None if question.metadata.message_type == "query.leave" else reply

    federation.site("site-1").answer = vanish
    federation.erase()
    assert len(disk(federation, 1).all()) == 0  # it did, and could not say so
    assert federation.told.has("'site-1' did not say that it deleted")


def test_models_at_the_server_are_for_their_owner_alone(federation: Federation) -> None:
    federation.train(1)
    models = federation.store.path / "models"
    assert stat.S_IMODE(models.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in models.iterdir()} == {0o600}


def test_a_home_is_known_by_what_was_drawn_once(federation: Federation) -> None:
    first, second = federation.store.identity, federation.store.identity
    assert first == second
    written = json.loads((federation.store.path / "identity.json").read_text())
    assert written == {"home": first}
    assert Store(federation.folder / "x", federation.store.load_model).identity != first
