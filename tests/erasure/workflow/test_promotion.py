from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from harness.erasure import small
from harness.erasure.small import NOW, later, rows
from harness.lines import passed_to
from secede import state as states
from secede.erasure.documents.request import new_request, sign_request, unverified_request
from secede.erasure.planning.options import EraseOptions
from secede.erasure.receipts.verify import verify_receipt
from secede.erasure.signing.keys import generate_key_pair, load_private_key
from secede.erasure.storage.home import Home
from secede.erasure.storage.journal import Journal
from secede.erasure.storage.journal_entries import Holder
from secede.erasure.storage.ledger import Ledger
from secede.erasure.workflow import erase, promotion
from secede.errors import ConfigError, RecordError, RequestError, StorageError
from secede.experiments.config import Training
from secede.simulation.backend import SimulatedBackend
from secede.unlearning.methods.projected_ascent import ProjectedAscent


def stop(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def test_a_clock_that_was_set_back_ends_in_a_receipt_all_the_same(home: Home) -> None:
    entry = small.receive(home)
    outcome = small.erase(home, entry.id, now=later(seconds=-1))
    assert outcome.state == "promoted"
    assert outcome.receipt is not None
    found = verify_receipt(outcome.receipt.read_bytes(), home.keyring(), ledger=home.ledger)
    asked = found.statement.predicate.request
    assert asked.received <= asked.promoted <= asked.completed
    stamps = [transition.at for transition in small.course(home).transitions]
    assert stamps == sorted(stamps)
    assert min(stamps) == NOW


@pytest.mark.parametrize("back", [1, 86_400])
def test_no_row_of_the_ledger_is_older_than_the_one_before(home: Home, back: int) -> None:
    small.erase(home, small.receive(home).id)
    small.erase(home, small.receive(home, "site-1").id, now=later(seconds=-back))
    with Ledger(home.ledger, read_only=True) as ledger:
        stamps = [row.at for row in ledger.rows()]
    assert stamps == sorted(stamps)


def test_nothing_is_promoted_for_which_no_receipt_can_be_made(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, ground = small.serving(home), SimulatedBackend(home)
    monkeypatch.setattr(ground, "training", lambda: {"x" * 65: 1})
    outcome = small.erase(home, small.receive(home).id, ground=ground)
    assert outcome.state == "rolled-back"
    assert "the receipt cannot be built" in str(outcome.reason)
    assert small.serving(home) == before
    assert home.model_path(before).exists()
    assert not home.receipts.exists()
    assert not home.work_folder(1).exists()


def test_what_is_destroyed_late_is_stamped_late_and_not_in_time(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = small.receive(home)
    with monkeypatch.context() as patched:
        patched.setattr(promotion, "_destroy", stop)
        with pytest.raises(KeyboardInterrupt):
            small.erase(home, entry.id)
    outcome = small.erase(home, entry.id, now=later(days=45))
    told = small.told(home)
    late = "2026-12-30T12:00:00Z"
    assert {thing["at"] for thing in told["destroyed"]} == {late}
    assert (told["request"]["promoted"], told["request"]["completed"]) == (
        "2026-11-15T12:00:00Z",
        late,
    )
    assert {row.at for kind in ("destroyed", "receipt") for row in rows(home, kind)} == {late}
    assert outcome.page is not None
    assert "after the due date" in outcome.page.read_text()


def test_a_receipt_that_is_made_late_is_not_in_time(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = small.receive(home)
    with monkeypatch.context() as patched:
        patched.setattr(promotion, "_issue", stop)
        with pytest.raises(KeyboardInterrupt):
            small.erase(home, entry.id)
    small.erase(home, entry.id, now=later(days=45))
    told = small.told(home)
    assert {thing["at"] for thing in told["destroyed"]} == {"2026-11-15T12:00:00Z"}
    assert told["request"]["completed"] == "2026-12-30T12:00:00Z"


def take_over(home: Home, now: Any) -> Holder:
    """Let another machine have the request after the lease has lapsed."""
    other = Holder(pid=4711)
    with Journal(home.journal) as journal:
        journal.lease(1, other, now, 600)
    return other


@pytest.mark.parametrize("given_back", [False, True])
def test_a_holder_that_lost_its_lease_promotes_deletes_and_signs_nothing(
    home: Home, given_back: bool
) -> None:
    entry, before, now = small.receive(home), small.serving(home), [NOW]

    def tell(line: str) -> None:
        if line == "verified":
            now[0] = later(minutes=20)
            other = take_over(home, now[0])
            if given_back:
                with Journal(home.journal) as journal:
                    journal.release(1, other)

    lost = pytest.raises(RecordError, match=r"process 4711 until|is not leased")
    with lost, passed_to(tell):
        erase.erase(
            home,
            SimulatedBackend(home),
            entry.id,
            key=home.server_key(),
            clock=lambda: now[0],
            options=small.options(),
        )
    assert small.serving(home) == before
    assert home.model_path(before).exists()
    assert home.work_folder(1).exists()
    assert not home.receipts.exists()
    assert rows(home, "destroyed") == rows(home, "receipt") == []


@pytest.mark.parametrize("at", ["_destroy", "_issue"])
def test_a_lease_lost_in_the_middle_of_the_end_stops_it_there(
    home: Home, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    entry, before, now = small.receive(home), small.serving(home), [NOW]
    genuine = getattr(promotion, at)

    def late(*args: Any) -> Any:
        now[0] = later(minutes=20)
        take_over(home, now[0])
        return genuine(*args)

    monkeypatch.setattr(promotion, at, late)
    with pytest.raises(RecordError, match="leased by process 4711"):
        erase.erase(
            home,
            SimulatedBackend(home),
            entry.id,
            key=home.server_key(),
            clock=lambda: now[0],
            options=small.options(),
        )
    assert home.model_path(before).exists() == (at == "_destroy")
    assert not home.receipts.exists()
    assert rows(home, "receipt") == []


def test_the_receipt_holds_every_parameter(home: Home) -> None:
    how = small.options(leaver_timeout=77.0, min_rounds=2, backups_until=later(days=9))
    small.erase(home, small.receive(home).id, how=how)
    method, course = small.told(home)["method"], small.course(home)
    assert method["parameters"].keys() == {f.name for f in fields(ProjectedAscent)}
    assert method["plan"] == course.plan
    said = method["settings"]
    assert (said["leaver_timeout"], said["min_rounds"], said["max_rounds"]) == (77.0, 2, 5)
    assert (said["margins.overall"], said["margins.per_class"], said["margins.level"]) == (
        0.05,
        0.1,
        0.95,
    )
    assert said["backups_until"] == "2026-11-24T12:00:00Z"
    assert method["training"].keys() == {*Training.model_fields, "seed"} - {
        "rounds",
        "retrain_again",
    }
    assert course.guard is not None
    assert method["guard"] == course.guard.scalars()
    assert {"distance", "max_distance", "min_distance"} <= method["guard"].keys()


def test_a_rung_without_the_leaver_has_no_guard_to_tell_of(home: Home) -> None:
    ground = SimulatedBackend(home, gone=["site-0"])
    small.erase(home, small.receive(home).id, ground=ground, how=EraseOptions())
    assert small.told(home)["method"]["guard"] is None


def test_a_key_that_is_not_the_server_s_is_refused_before_any_work(home: Home) -> None:
    entry = small.receive(home)
    other = load_private_key(home.path / "sites" / "site-1.key")
    with pytest.raises(ConfigError, match="does not belong to"):
        erase.erase(home, SimulatedBackend(home), entry.id, key=other, clock=lambda: NOW)
    assert small.way(home) == ["received"]


def test_all_that_lies_in_a_home_is_its_owner_s_alone(
    tmp_path: Path,
) -> None:
    before = os.umask(0o022)
    try:
        home = small.make(tmp_path)

        def watch(line: str) -> None:
            if line in ("guarded", "verified"):
                assert list(home.work_folder(1).iterdir())
                check()

        def check() -> None:
            assert home.path.stat().st_mode & 0o777 == 0o700
            for path in home.path.rglob("*"):
                most = 0o700 if path.is_dir() else 0o644 if path.suffix == ".pub" else 0o600
                assert path.stat().st_mode & 0o777 & ~most == 0, path

        small.erase(home, small.receive(home).id, tell=watch)
        check()
        assert states.load(home.model_path(small.serving(home)))
    finally:
        os.umask(before)


def test_an_open_request_can_be_closed_with_a_reason(home: Home) -> None:
    entry, before = small.receive(home), small.serving(home)

    def tell(line: str) -> None:
        if line == "guarded":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        small.erase(home, entry.id, tell=tell)

    def close(number: int) -> erase.Outcome:
        key, ground = home.server_key(), SimulatedBackend(home)
        return erase.close_request(home, ground, number, "withdrawn", key=key, clock=lambda: NOW)

    outcome = close(entry.id)
    assert (outcome.state, outcome.reason) == ("refused", "withdrawn")
    assert not home.work_folder(1).exists()
    assert small.serving(home) == before
    assert "withdrawn" not in str(rows(home, "transition"))
    with pytest.raises(RequestError, match="has ended already"):
        close(entry.id)


@pytest.mark.parametrize("at", ["_put_into_service", "_destroy", "_issue"])
def test_nothing_is_put_off_while_the_receipt_is_made_out(
    home: Home, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    entry = small.receive(home)
    with monkeypatch.context() as patched:
        patched.setattr(promotion, at, stop)
        with pytest.raises(KeyboardInterrupt):
            small.erase(home, entry.id)
    with (
        Journal(home.journal) as journal,
        pytest.raises(RequestError, match="being completed"),
    ):
        journal.extend(entry.id, 1, "many at once", NOW)
    assert small.erase(home, entry.id).receipt is not None


@pytest.mark.parametrize("hard", [False, True])
def test_a_model_whose_content_would_stay_is_not_called_destroyed(
    home: Home, tmp_path: Path, hard: bool
) -> None:
    before, entry = small.serving(home), small.receive(home)
    path, other = home.model_path(before), tmp_path / "elsewhere"
    if hard:
        os.link(path, other)
    else:
        path.rename(other)
        path.symlink_to(other)
    with pytest.raises(StorageError, match="would leave"):
        small.erase(home, entry.id)
    assert small.serving(home) == before
    assert rows(home, "destroyed") == []
    if not hard:
        path.unlink()
        other.rename(path)
    other.unlink(missing_ok=True)
    assert small.erase(home, entry.id).state == "promoted"
    assert not path.exists()


@pytest.mark.parametrize("after", ["planned", "local step", "guarded", "post training"])
def test_a_damaged_model_at_the_server_is_no_client_s_fault(home: Home, after: str) -> None:
    entry, path = small.receive(home), home.model_path(small.serving(home))
    content = path.read_bytes()

    def tell(line: str) -> None:
        if line.startswith(after):
            path.write_bytes(content[:-4] + b"\0\0\1\0")

    with pytest.raises(StorageError, match="restore the file"):
        small.erase(home, entry.id, tell=tell)
    assert "escalated" not in small.way(home)
    path.write_bytes(content)
    assert small.erase(home, entry.id).rung == "local-step"


@pytest.mark.parametrize("name", ["server", "stranger"])
def test_a_key_alone_makes_nobody_a_client(home: Home, name: str) -> None:
    key = home.path / "server.key"
    if name == "stranger":
        key, public = generate_key_pair(home.path / "elsewhere", name)
        (home.keys / public.name).write_bytes(public.read_bytes())
    made = new_request(
        federation=small.NAME,
        client=name,
        trigger="objection",
        model=small.serving(home),
        now=NOW,
    )
    data = sign_request(made, load_private_key(key))
    with pytest.raises(RequestError, match="is unknown"):
        erase.receive(home, data, NOW)
    assert not list((home.path / "acknowledgements").glob("*"))


@pytest.mark.parametrize("name", ["site-0", "site-1.next", "site-2.next"])
@pytest.mark.parametrize("hard", [False, True])
def test_a_state_whose_content_would_stay_is_found_before_anything_is_promoted(
    home: Home, tmp_path: Path, name: str, hard: bool
) -> None:
    before, entry, other = small.serving(home), small.receive(home), tmp_path / "elsewhere"
    path = home.path / "sites" / f"{name}.safetensors"

    def tell(line: str) -> None:
        if line.startswith("verified") and path.exists():
            if hard:
                os.link(path, other)
            else:
                path.rename(other)
                path.symlink_to(other)

    with pytest.raises(StorageError, match="would leave"):
        small.erase(home, entry.id, tell=tell)
    assert small.serving(home) == before
    assert home.model_path(before).exists()
    assert rows(home, "destroyed") == []
    if not hard:
        path.unlink()
        other.rename(path)
    other.unlink(missing_ok=True)
    assert small.erase(home, entry.id).state == "promoted"


def test_a_link_in_place_of_the_states_is_found_before_anything_is_promoted(
    home: Home, tmp_path: Path
) -> None:
    before, entry, folder = small.serving(home), small.receive(home), tmp_path / "elsewhere"
    work = home.work_folder(entry.id)

    def tell(line: str) -> None:
        if line.startswith("verified"):
            work.rename(folder)
            work.symlink_to(folder)

    with pytest.raises(StorageError, match="is a symbolic link: deleting it would leave"):
        small.erase(home, entry.id, tell=tell)
    assert small.serving(home) == before
    work.unlink()
    folder.rename(work)
    assert small.erase(home, entry.id).state == "promoted"


def test_names_are_whole_digests_and_no_other_receipt_is_replaced(home: Home) -> None:
    first = small.receive(home)
    small.erase(home, first.id)
    receipt, said = home.receipt_path(first.digest), home.acknowledgement_path(first.digest)
    assert (receipt.stem, said.stem) == (first.digest, first.digest)
    second = small.receive(home, "site-1")
    place = home.receipt_path(second.digest)
    place.write_bytes(receipt.read_bytes())
    with pytest.raises(RecordError, match="valid receipt of 'site-0' for another request"):
        small.erase(home, second.id)
    assert place.read_bytes() == receipt.read_bytes()
    place.unlink()
    assert small.erase(home, second.id).state == "promoted"


def test_no_other_acknowledgement_is_replaced(home: Home) -> None:
    first, data = small.receive(home), small.ask(home, "site-1")
    place = home.acknowledgement_path(unverified_request(data).digest())
    place.write_bytes(home.acknowledgement_path(first.digest).read_bytes())
    with pytest.raises(RecordError, match="valid acknowledgement of another request"):
        erase.receive(home, data, NOW)
    place.unlink()
    erase.receive(home, data, NOW)
