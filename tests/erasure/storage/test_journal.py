"""Tests `erasure/storage/journal_entries.py` and `erasure/storage/progress.py` too."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from harness.erasure.questions import ALLOWED, FEDERATION, MODEL, NOW, People, later, people
from secede.erasure.defences.gate import MAX_CLASSES
from secede.erasure.documents.request import unverified_request
from secede.erasure.storage.journal import Journal
from secede.erasure.storage.journal_entries import Accepted, AlreadyAccepted, Entry, Holder
from secede.erasure.types import MAX_SAFE_INTEGER
from secede.errors import ConfigError, RecordError, RequestError, SecedeError, TrustError


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> People:
    return people(tmp_path_factory.mktemp("keys"), "north", "south")


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal(tmp_path / "journal.db") as opened:
        yield opened


def accepted(two: People, journal: Journal, client: str = "north", now: datetime = NOW) -> Entry:
    outcome = two.send(journal, two.ask(client, now=now), now)
    assert isinstance(outcome, Accepted)
    return outcome.entry


def close(journal: Journal, number: int, now: datetime = NOW) -> None:
    holder = Holder()
    journal.lease(number, holder, now, 60)
    journal.append(number, "dropped", {}, now, holder=holder, allowed=ALLOWED)


def dump(journal: Journal) -> list[str]:
    with sqlite3.connect(journal.path) as connection:
        return list(connection.iterdump())


def test_a_request_is_written_down_with_its_dates(two: People, journal: Journal) -> None:
    data = two.ask("north")
    outcome = two.send(journal, data)
    assert isinstance(outcome, Accepted)
    entry = outcome.entry
    assert (entry.client, entry.state, entry.open) == ("north", "received", True)
    assert (entry.received, entry.due) == (NOW, datetime(2026, 12, 15, 12, tzinfo=UTC))
    assert entry.acknowledged is None
    assert entry.digest == journal.request(entry.id).digest()
    assert journal.request(entry.id).model == MODEL
    assert [t.state for t in journal.transitions(entry.id)] == ["received"]


def test_the_same_request_is_accepted_once_however_often_and_late_it_comes(
    two: People, journal: Journal
) -> None:
    data = two.ask("north")
    first = two.send(journal, data)
    close(journal, first.entry.id)
    before = dump(journal)
    for now in (NOW, later(minutes=1), later(days=400), NOW - timedelta(days=1)):
        again = two.send(journal, data, now)
        assert isinstance(again, AlreadyAccepted)
        assert again.entry.id == first.entry.id
        assert not again.entry.open
    assert dump(journal) == before


def test_refusals_say_why_and_leave_no_trace(two: People, journal: Journal) -> None:
    nonce = journal.request(accepted(two, journal).id).nonce
    close(journal, 1)
    accepted(two, journal, "south")
    before = dump(journal)
    genuine = two.ask("north")
    forged = genuine.replace(b"payload", b"paYload")
    stolen = two.signed(unverified_request(genuine), by="south")
    stranger = two.signed(
        unverified_request(genuine).model_copy(update={"client": "west"}), by="north"
    )
    elsewhere = two.ask("north", federation="banks")
    replayed = two.ask("north", nonce=nonce, trigger="unlawful")
    cases: list[tuple[bytes, datetime, type[SecedeError], str]] = [
        (forged, NOW, TrustError, "not a DSSE envelope"),
        (stolen, NOW, TrustError, "signed with south.s key, expected north.s"),
        (stranger, NOW, RequestError, "client 'west' is unknown"),
        (elsewhere, NOW, RequestError, "for federation 'banks'"),
        (replayed, NOW, RequestError, "repeats the nonce"),
        (genuine, later(days=7), RequestError, "expired"),
        (genuine, NOW - timedelta(minutes=5, seconds=1), RequestError, "clock"),
        (two.ask("south"), NOW, RequestError, "the open request 2, due 2026-12-15T12:00:00Z"),
        (b"", NOW, TrustError, "not valid JSON"),
        (b"x" * 100_000, NOW, TrustError, "the limit is 16,384"),
    ]
    for data, now, kind, told in cases:
        with pytest.raises(kind, match=told) as caught:
            two.send(journal, data, now)
        assert nonce not in str(caught.value)
    assert dump(journal) == before
    assert isinstance(two.send(journal, genuine), Accepted)


def test_a_nonce_belongs_to_its_client(two: People, journal: Journal) -> None:
    # Otherwise who sees another's request could make it fail by using its nonce first.
    data = two.ask("north")
    copied = two.ask("south", nonce=unverified_request(data).nonce)
    assert isinstance(two.send(journal, copied), Accepted)
    assert isinstance(two.send(journal, data), Accepted)


def test_a_clock_five_minutes_ahead_is_forgiven(two: People, journal: Journal) -> None:
    assert isinstance(two.send(journal, two.ask("north", now=later(minutes=5))), Accepted)


def test_a_quota_counts_thirty_days_back(two: People, journal: Journal) -> None:
    for day in range(3):
        close(journal, accepted(two, journal, now=later(days=day)).id)
    told = "made 3 requests within 30 days, the limit is 3; the next one can come at 2026-12-15T12"
    edge = later(days=30)
    for now in (later(days=3), edge - timedelta(seconds=1)):
        with pytest.raises(RequestError, match=told):
            two.send(journal, two.ask("north", now=now), now)
    close(journal, accepted(two, journal, "south", edge).id)  # quotas are each client's own
    close(journal, accepted(two, journal, now=edge).id)
    with pytest.raises(RequestError, match="can come at 2026-12-16T12"):
        two.send(journal, two.ask("north", now=edge), edge)


def test_a_client_may_have_a_quota_of_its_own(two: People, journal: Journal) -> None:
    journal.set_quota("north", 0)
    with pytest.raises(RequestError, match=r"made 0 requests within 30 days, the limit is 0$"):
        two.send(journal, two.ask("north"))
    journal.set_quota("north", 5)
    for _ in range(5):
        close(journal, accepted(two, journal).id)
    with pytest.raises(RequestError, match="the limit is 5"):
        two.send(journal, two.ask("north"))
    close(journal, two.send(journal, two.ask("south"), quota=1).entry.id)
    with pytest.raises(RequestError, match="the limit is 1"):
        two.send(journal, two.ask("south"), quota=1)
    with pytest.raises(ConfigError, match="0 or more"):
        journal.set_quota("north", -1)
    with pytest.raises(ConfigError, match="client"):
        journal.set_quota("no rth", 1)


def test_the_first_acknowledgement_counts(two: People, journal: Journal) -> None:
    number = accepted(two, journal).id
    assert journal.acknowledge(number, later(hours=1)).acknowledged == later(hours=1)
    assert journal.acknowledge(number, later(hours=2)).acknowledged == later(hours=1)
    with pytest.raises(RequestError, match="no request 7"):
        journal.acknowledge(7, NOW)


def test_a_due_date_is_put_off_by_two_months_at_most(two: People, journal: Journal) -> None:
    january = datetime(2026, 1, 31, 8, tzinfo=UTC)
    entry = accepted(two, journal, now=january)
    assert entry.due == datetime(2026, 2, 28, 8, tzinfo=UTC)
    once = journal.extend(entry.id, 1, "many requests at once", january)
    assert (once.due, once.extended) == (datetime(2026, 3, 31, 8, tzinfo=UTC), 1)
    twice = journal.extend(entry.id, 2, "a complex model", entry.due)
    assert (twice.due, twice.extended) == (datetime(2026, 4, 30, 8, tzinfo=UTC), 2)
    assert twice.reason == "a complex model"
    for months in (1, 2):
        with pytest.raises(RequestError, match="already extended by 2 months"):
            journal.extend(entry.id, months, "again", january)
    for months in (0, 3, -1):
        with pytest.raises(ConfigError, match="expected 1 to 2"):
            journal.extend(entry.id, months, "more", january)


def test_extending_needs_a_reason_in_time_and_an_open_request(
    two: People, journal: Journal
) -> None:
    entry = accepted(two, journal)
    for reason in ("", "  ", "x" * 301, "two\nlines", "\x1b[2J"):
        with pytest.raises(ConfigError, match="reason"):
            journal.extend(entry.id, 1, reason, NOW)
    with pytest.raises(RequestError, match="could be extended until 2026-12-15T12:00:00Z"):
        journal.extend(entry.id, 1, "late", entry.due + timedelta(seconds=1))
    close(journal, entry.id)
    with pytest.raises(RequestError, match="closed"):
        journal.extend(entry.id, 1, "why", NOW)


def test_requests_are_listed_with_the_days_left(two: People, journal: Journal) -> None:
    assert journal.entries() == []
    accepted(two, journal)
    accepted(two, journal, "south", later(days=1))
    close(journal, 2)
    for now, left in ((NOW, 30), (later(seconds=1), 30), (later(days=30), 0), (later(days=31), -1)):
        assert [entry.days_left(now) for entry in journal.entries()] == [left, None]


def test_a_way_is_numbered_and_closes_where_nothing_can_follow(
    two: People, journal: Journal
) -> None:
    number, holder = accepted(two, journal).id, Holder()
    journal.lease(number, holder, NOW, 60)
    for step in range(3):
        journal.append(
            number, "working", {"round": step}, later(minutes=step), holder=holder, allowed=ALLOWED
        )
    last = journal.append(number, "done", {}, later(hours=1), holder=holder, allowed=ALLOWED)
    assert last.number == 4
    way = journal.transitions(number)
    assert [t.number for t in way] == [0, 1, 2, 3, 4]
    assert [t.state for t in way] == ["received", "working", "working", "working", "done"]
    assert [t.details for t in way[1:4]] == [{"round": 0}, {"round": 1}, {"round": 2}]
    assert way[-1] == last
    assert not journal.entries()[0].open
    assert isinstance(two.send(journal, two.ask("north")), Accepted)  # the way is free again


def test_the_counts_of_as_many_classes_as_the_gate_takes_fit(two: People, journal: Journal) -> None:
    number, holder = accepted(two, journal).id, Holder()
    journal.lease(number, holder, NOW, 60)
    most = {"right": [MAX_SAFE_INTEGER] * MAX_CLASSES, "samples": [MAX_SAFE_INTEGER] * MAX_CLASSES}
    details = {"before": most, "counts": most}
    journal.append(number, "working", details, NOW, holder=holder, allowed=ALLOWED)
    assert journal.transitions(number)[-1].details == details


def test_only_allowed_states_follow(two: People, journal: Journal) -> None:
    number, holder = accepted(two, journal).id, Holder()
    journal.lease(number, holder, NOW, 60)

    def go(state: str, details: dict[str, Any] | None = None) -> None:
        journal.append(number, state, details or {}, NOW, holder=holder, allowed=ALLOWED)

    with pytest.raises(
        RecordError, match=r"is 'received' and cannot become 'done'.*dropped or wor"
    ):
        go("done")
    with pytest.raises(ConfigError, match="no state 'elsewhere'"):
        go("elsewhere")
    with pytest.raises(ConfigError, match="at most 8,388,608"):
        go("working", {"x": "y" * (8 << 20)})
    with pytest.raises(TrustError, match="no canonical JSON"):
        go("working", {"x": float("nan")})
    with pytest.raises(RequestError, match="no request 9"):
        journal.append(9, "working", {}, NOW, holder=holder, allowed=ALLOWED)
    with pytest.raises(RequestError, match="no request 9"):
        journal.transitions(9)
    go("dropped")
    journal.lease(number, holder, NOW, 60)
    with pytest.raises(RecordError, match="cannot become 'working': expected no state"):
        go("working")
    assert len(journal.transitions(number)) == 2


def test_one_holds_the_lease_and_the_other_is_told_who(two: People, journal: Journal) -> None:
    number, one, other = accepted(two, journal).id, Holder(pid=11), Holder(pid=22)
    lease = journal.lease(number, one, NOW, 60)
    assert lease.until == later(seconds=60)
    for now in (NOW, later(seconds=59)):
        with pytest.raises(RecordError, match="process 11 until 2026-11-15T12:01:00Z") as caught:
            journal.lease(number, other, now, 60)
        assert one.token not in str(caught.value)
    assert journal.lease(number, one, later(seconds=30), 60).until == later(seconds=90)
    assert journal.lease(number, other, later(seconds=90), 60).holder == other  # it lapsed
    with pytest.raises(RecordError, match=r"process 22 until .*, not by process 11 any more"):
        journal.append(number, "working", {}, NOW, holder=one, allowed=ALLOWED)
    journal.release(number, one)  # not its own any more: nothing happens
    journal.append(number, "working", {}, NOW, holder=other, allowed=ALLOWED)
    journal.release(number, other)
    with pytest.raises(RecordError, match="is not leased"):
        journal.append(number, "working", {}, NOW, holder=other, allowed=ALLOWED)
    assert journal.lease(number, one, later(seconds=91), 1)
    with pytest.raises(ConfigError, match="at least 1 second"):
        journal.lease(number, one, NOW, 0)
    with pytest.raises(RequestError, match="no request 9"):
        journal.lease(9, one, NOW, 1)


def test_transitions_cannot_be_changed_removed_or_slipped_in(two: People, journal: Journal) -> None:
    accepted(two, journal)
    with sqlite3.connect(journal.path) as connection:
        for statement in (
            "UPDATE transitions SET state = 'done'",
            "DELETE FROM transitions",
            "INSERT INTO transitions VALUES (1, 5, 'done', '2026-11-15T12:00:00Z', '{}')",
            "REPLACE INTO transitions VALUES (1, 0, 'done', '2026-11-15T12:00:00Z', '{}')",
        ):
            with pytest.raises(sqlite3.IntegrityError, match="append-only"):
                connection.execute(statement)


def test_it_is_kept_between_openings_and_can_be_read_only(two: People, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "journal.db"
    with Journal(path) as journal:
        accepted(two, journal)
    assert path.stat().st_mode & 0o777 == 0o600
    with Journal(path, read_only=True) as journal:
        assert len(journal.entries()) == 1
    assert [p.name for p in path.parent.iterdir()] == ["journal.db"]
    with Journal(path) as journal:
        assert isinstance(two.send(journal, two.ask("south")), Accepted)
        with Journal(path, read_only=True) as reader:
            assert len(reader.entries()) == 2
            with pytest.raises(SecedeError):
                two.send(reader, two.ask("north"), NOW)


def test_the_settings_are_those_that_survive_a_power_cut(journal: Journal) -> None:
    ask = journal.connection.execute
    assert ask("PRAGMA journal_mode").fetchone() == ("wal",)
    assert ask("PRAGMA synchronous").fetchone() == (2,)  # FULL
    assert ask("PRAGMA foreign_keys").fetchone() == (1,)
    assert ask("PRAGMA busy_timeout").fetchone()[0] >= 5000
    assert ask("PRAGMA user_version").fetchone() == (1,)


def test_values_that_nobody_wrote_are_damage(two: People, tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with Journal(path) as journal:
        accepted(two, journal)
        accepted(two, journal, "south")
    for statement in (
        "UPDATE requests SET received = 'yesterday, at noon..' WHERE id = 1",
        "UPDATE requests SET received = '2026-11-15T12:00:00Z', client = 'no rth' WHERE id = 1",
    ):
        with sqlite3.connect(path) as connection:
            connection.execute(statement)
        connection.close()
        with Journal(path) as journal, pytest.raises(RecordError, match="damaged at request 1"):
            journal.entries()
    with sqlite3.connect(path) as connection:
        connection.execute(
            "UPDATE requests SET envelope = (SELECT envelope FROM requests WHERE id = 1) "
            "WHERE id = 2"
        )
    connection.close()
    with Journal(path) as journal, pytest.raises(RecordError, match="damaged at request 2"):
        journal.request(2)


def test_federation_is_part_of_what_is_checked(two: People, journal: Journal) -> None:
    with pytest.raises(RequestError, match="for federation 'clinics', this is 'other'"):
        journal.accept(two.ask("north"), NOW, keyring=two.ring, federation="other")
    assert journal.accept(two.ask("north"), NOW, keyring=two.ring, federation=FEDERATION)
