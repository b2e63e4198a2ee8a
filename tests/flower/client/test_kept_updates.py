"""What a client keeps of itself: for whom, how long, and that writers do not meet."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord, Message, RecordDict
from pydantic import ValidationError

from harness.flower.kept import A, B, disk, keep
from harness.flower.small import Federation
from harness.paths import TESTS
from secede import state as states
from secede.errors import ConfigError, RecordError
from secede.flower.client.kept_updates import KeptUpdate, KeptUpdates
from secede.flower.protocol import messages


def test_rounds_for_another_home_evict_nothing(tmp_path: Path) -> None:
    updates = KeptUpdates(tmp_path)
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
    updates = KeptUpdates(tmp_path)
    for value in range(40):
        keep(updates, value, home=f"{value:032x}")
    assert len(updates.all()) == 16
    assert len(list(tmp_path.glob("*.safetensors"))) == 16


def test_two_clients_in_one_folder_are_refused(tmp_path: Path) -> None:
    updates = KeptUpdates(tmp_path)
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
                KeptUpdates(tmp_path).put(state, run="1", number=value, samples=1.0, home=A)
            except Exception as error:
                faults.append(str(error))

    threads = [threading.Thread(target=write, args=(1000 * n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    updates = KeptUpdates(tmp_path)
    assert len(updates.all()) == 2
    assert all(updates.get(str(kept.digest)) is not None for kept in updates.all())
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


# Not hashed by the client


def keep_unhashed(updates: KeptUpdates, value: float, **options: Any) -> str:
    """Keep an update without hashing it; return the digest that a server would find."""
    assert keep(updates, value, home=A, hashed=False, **options) == "None"
    return states.digest({"w": torch.full((3,), float(value))})


def test_an_update_that_was_not_hashed_is_found_by_its_digest(tmp_path: Path) -> None:
    updates = KeptUpdates(tmp_path)
    first, second = (keep_unhashed(updates, value) for value in (1, 2))
    for value, digest in ((1.0, first), (2.0, second)):
        assert (updates.get(digest) or {})["w"].tolist() == [value] * 3
    assert updates.get("0" * 64) is None
    assert (updates.newest(A) or {})["w"].tolist() == [2.0] * 3
    assert updates.newest(B) is None


def test_the_next_round_tells_its_digest_and_it_stays_as_long_as_it_serves(tmp_path: Path) -> None:
    updates = KeptUpdates(tmp_path)
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
    updates, wrong = KeptUpdates(tmp_path), "0" * 64  # as where noise comes after what is kept
    first = keep_unhashed(updates, 1)
    second = keep_unhashed(updates, 2, serving=wrong)
    assert updates.all()[1].digest == wrong
    assert (updates.get(first) or {})["w"].tolist() == [1.0] * 3
    assert updates.get(wrong) is None
    keep_unhashed(updates, 3, serving=second)
    keep(updates, 4, home=B)
    assert updates.all()[2].digest == second
    assert (updates.newest(A) or {})["w"].tolist() == [3.0] * 3


def test_the_newest_is_given_whatever_the_server_calls_it(tmp_path: Path) -> None:
    updates = KeptUpdates(tmp_path)
    keep_unhashed(updates, 1)
    path = tmp_path / "index.json"
    index = json.loads(path.read_text())
    index["updates"][0]["digest"] = "0" * 64
    path.write_text(json.dumps(index))
    assert (updates.newest(A) or {})["w"].tolist() == [1.0] * 3


def test_an_update_that_counts_stays_though_the_server_was_silent_about_it(tmp_path: Path) -> None:
    updates = KeptUpdates(tmp_path)
    first = keep_unhashed(updates, 1)
    second = keep_unhashed(updates, 2, serving=None)
    keep_unhashed(updates, 3, serving=first)
    assert [(kept.round, kept.digest) for kept in updates.all()] == [
        (3, None),
        (2, second),
        (1, first),
    ]
    assert (updates.get(first, A) or {})["w"].tolist() == [1.0] * 3


def test_while_none_is_the_serving_one_two_more_stay(tmp_path: Path) -> None:
    updates, unknown = KeptUpdates(tmp_path), "0" * 64
    digests = [keep_unhashed(updates, value) for value in (1, 2)]
    for value in (3, 4, 5, 6):
        digests.append(keep_unhashed(updates, value, serving=unknown))
    # What the server told before an update was kept is not taken for that update's digest.
    assert [kept.digest for kept in updates.all()] == [None, *reversed(digests[2:5])]
    keep_unhashed(updates, 7, serving=digests[2])  # it was found: the others may go
    assert [kept.round for kept in updates.all()] == [7, 6, 3]


def test_a_server_that_never_tells_a_digest_fills_no_disk(tmp_path: Path) -> None:
    updates = KeptUpdates(tmp_path)
    digests = [keep_unhashed(updates, value) for value in (1, 2, 3, 4, 5, 6)]
    assert [kept.round for kept in updates.all()] == [6, 5, 4, 3]
    assert len(list(tmp_path.glob("*.safetensors"))) == 4
    keep_unhashed(updates, 7, serving=digests[2])
    assert [kept.round for kept in updates.all()] == [7, 6, 3]


def test_a_usual_round_hashes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    updates, hashed = KeptUpdates(tmp_path), list[str]()
    real, before = states.digest, None

    def counted(state: states.State) -> str:
        hashed.append(real(state))
        return hashed[-1]

    for value in (1, 2, 3):
        with monkeypatch.context() as patch:
            patch.setattr(states, "digest", counted)
            keep(updates, value, home=A, hashed=False, serving=before)
        before = states.digest({"w": torch.full((3,), float(value))})
    assert hashed == []
    assert updates.all()[1].digest is not None


def test_no_other_homes_updates_are_looked_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    updates, read = KeptUpdates(tmp_path), list[str]()
    mine = keep_unhashed(updates, 1)
    keep(updates, 2, home=B, hashed=False)
    real = states.load

    def counted(path: Path) -> Any:
        read.append(path.stem)
        return real(path)

    monkeypatch.setattr(states, "load", counted)
    assert updates.get("0" * 64, A) is None
    assert read == [kept.file for kept in updates.all() if kept.home == A]
    assert updates.get(mine, B) is None
    assert updates.get(mine, A) is not None


@pytest.mark.parametrize("word", ["Z" * 64, "A" * 64, "0" * 63, "0" * 64 + "\n", 7])
def test_a_word_that_is_no_digest_is_not_taken_from_a_message(
    federation: Federation, word: str | int
) -> None:
    federation.grid()  # messages belong to a run
    told = ConfigRecord({"home": A, "serving": word})
    message = Message(RecordDict({"secede.keep": told}), 5, "train")
    assert messages.pop_home(message) == (A, None)


def test_a_word_that_is_no_digest_does_not_get_into_the_index(tmp_path: Path) -> None:
    updates = KeptUpdates(tmp_path)
    keep_unhashed(updates, 1)
    with pytest.raises(ValidationError):
        keep_unhashed(updates, 2, serving="Z" * 64)
    keep(updates, 3, home=B)
    assert [kept.round for kept in updates.all()] == [3, 1]


def test_a_server_that_tells_no_digest_breaks_no_other_federation(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = messages.add_home

    def lie(message: Message, home: str, serving: str | None) -> None:
        real(message, home, "Z" * 64)

    with monkeypatch.context() as patch:
        patch.setattr(messages, "add_home", lie)
        federation.train(2)
    keep(disk(federation, 1), 7, home=B)
    assert [kept.home for kept in disk(federation, 1).all()].count(B) == 1
    assert federation.erase().rung == "local-step"


# Damaged


def damage(path: Path, how: str) -> str:
    """Damage a file; return what is said of it."""
    if how == "cut":
        path.write_bytes(path.read_bytes()[:-4])
        return "not a readable safetensors file"
    states.save({"w": torch.full((3,), 9.0)}, path)
    return "not those that were written"


@pytest.mark.parametrize("how", ["cut", "changed"])
@pytest.mark.parametrize("named", [False, True])
def test_an_update_that_was_damaged_is_not_given_out(tmp_path: Path, how: str, named: bool) -> None:
    updates = KeptUpdates(tmp_path)
    first = keep_unhashed(updates, 1)
    (path,) = tmp_path.glob("*.safetensors")
    said = damage(path, how)
    if named:
        keep(updates, 2, home=A, serving=first)
    with pytest.raises(RecordError, match=f"{path.name}: .*{said}"):
        updates.get(first, A)
    assert updates.get("0" * 64, B) is None


@pytest.mark.parametrize("how", ["cut", "changed"])
@pytest.mark.parametrize("hashed", [False, True])
def test_the_newest_is_the_last_that_is_not_damaged(tmp_path: Path, how: str, hashed: bool) -> None:
    updates = KeptUpdates(tmp_path)
    for value in (1, 2):
        keep(updates, value, home=A, hashed=hashed)
    second, first = (tmp_path / f"{kept.stem}.safetensors" for kept in updates.all())
    damage(second, how)
    assert (updates.newest(A) or {})["w"].tolist() == [1.0] * 3
    said = damage(first, how)
    with pytest.raises(RecordError, match=f"{second.name}: .*{said}"):
        updates.newest(A)


def test_a_damaged_update_is_told_no_digest(tmp_path: Path) -> None:
    updates = KeptUpdates(tmp_path)
    first = keep_unhashed(updates, 1)
    (path,) = tmp_path.glob("*.safetensors")
    second = keep_unhashed(updates, 2)
    damage(path, "changed")
    keep_unhashed(updates, 3, serving=first)
    assert [kept.digest for kept in updates.all()] == [None, second, None]


# The index


def test_an_entry_has_a_digest_or_a_file() -> None:
    with pytest.raises(ValidationError, match="neither digest nor file"):
        KeptUpdate(run="1", round=1, samples=1.0)


def test_an_entry_with_a_file_of_its_own_has_a_checksum(tmp_path: Path) -> None:
    updates = KeptUpdates(tmp_path)
    keep_unhashed(updates, 1)
    path = tmp_path / "index.json"
    index = json.loads(path.read_text())
    del index["updates"][0]["checksum"]
    path.write_text(json.dumps(index))
    with pytest.raises(RecordError, match="damaged"):
        updates.newest(A)


def test_a_kill_at_any_step_leaves_the_old_updates_or_the_new_one(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "harness.flower.killed", str(tmp_path)],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
    )
    assert ended.returncode == 0, ended.stderr
    *kills, whole = json.loads(ended.stdout)
    # The update is whole and in its place before the index names it; then the oldest goes.
    steps = ["save_file", "fsync", "replace", "unlink"]  # the last for a part that is there no more
    assert whole["steps"] == [*steps[:4], "fsync", "replace", "fsync", "unlink", "unlink"]
    assert [kill["steps"] for kill in kills] == [whole["steps"][:n] for n in range(9)]
    assert [kill["rounds"] for kill in kills] == [[2, 1]] * 6 + [[3, 2]] * 3
    assert kills[0]["parts"] == 2  # nothing but a kill leaves them
    assert all(each["whole"] and each["clean"] for each in (*kills, whole))
    assert [each["after"] for each in kills] == [[4, 2]] * 6 + [[4, 3, 2]] * 3
