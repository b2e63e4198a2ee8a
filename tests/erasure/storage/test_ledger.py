from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness.erasure import papers
from secede.erasure.documents.ledger_rows import START, DeliveredBody, Head, TransitionBody
from secede.erasure.storage import ledger as ledgers
from secede.erasure.storage.ledger import Ledger
from secede.errors import RecordError, SecedeError, StorageError, TrustError

TRIGGERS = ("rows_are_not_changed", "rows_are_not_deleted", "rows_come_last")


def step(number: int) -> TransitionBody:
    return TransitionBody(request=papers.REQUEST, number=number, state="post-training")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with Ledger(tmp_path / "ledger.db") as ledger:
        papers.fill(ledger)
    return tmp_path / "ledger.db"


def tamper(path: Path, *statements: str, keep_triggers: bool = True) -> None:
    """Change the file behind the ledger's back, and put its triggers back as they were."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for name in TRIGGERS:
            connection.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            connection.execute(statement)
        if keep_triggers:
            for statement in ledgers.Ledger.statements[1:]:
                connection.execute(statement)


def columns(path: Path) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("SELECT * FROM rows ORDER BY number").fetchall()


def test_rows_come_back_in_order_and_end_at_the_head(path: Path) -> None:
    with Ledger(path) as ledger:
        kinds = [row.kind for row in ledger.rows()]
        head = ledger.verify()
        assert head == ledger.head()
    made = ["federation", "keys", "request", "acknowledged", "plan", "transition", "transition"]
    made += ["model", "model", "delivered", "sketch"]
    assert kinds == [*made, "destroyed", "destroyed", "receipt"]
    assert ledgers.verify_ledger(path, head) == head


def test_an_empty_ledger_is_whole(tmp_path: Path) -> None:
    with Ledger(tmp_path / "new" / "ledger.db") as ledger:
        assert ledger.verify() == START == ledger.head()


def test_the_export_verifies_to_the_same_head(path: Path, tmp_path: Path) -> None:
    with Ledger(path) as ledger:
        head = ledgers.export_ledger(ledger.rows(), tmp_path / "ledger.jsonl")
        assert head == ledger.head()
    assert ledgers.verify_ledger(tmp_path / "ledger.jsonl", head) == head
    assert list(ledgers.rows_of_export(tmp_path / "ledger.jsonl")) == list(
        ledgers.rows_of_export(path)
    )


def test_a_damaged_ledger_is_not_exported(path: Path, tmp_path: Path) -> None:
    tamper(path, "DELETE FROM rows WHERE number = 3")
    with Ledger(path) as ledger, pytest.raises(TrustError):
        ledgers.export_ledger(ledger.rows(), tmp_path / "out.jsonl")
    assert [file.name for file in tmp_path.iterdir()] == ["ledger.db"]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE rows SET kind = 'plan'",
        "DELETE FROM rows",
        "INSERT OR REPLACE INTO rows SELECT 1, at, kind, body, previous, hash FROM rows LIMIT 1",
        "INSERT INTO rows SELECT 99, at, kind, body, previous, hash FROM rows LIMIT 1",
    ],
)
def test_the_file_refuses_to_change_delete_or_replace_rows(path: Path, statement: str) -> None:
    with (
        closing(sqlite3.connect(path)) as connection,
        pytest.raises(sqlite3.IntegrityError, match="append-only"),
    ):
        connection.execute(statement)


COPY = "INSERT INTO rows SELECT 15, at, kind, body, previous, hash FROM rows WHERE number = {0}"
CHANGES = {
    "at": "UPDATE rows SET at = '2026-11-15T23:59:59Z' WHERE number = {0}",
    "kind": "UPDATE rows SET kind = 'destroyed' WHERE number = {0}",
    "body": "UPDATE rows SET body = replace(body, '{{', '{{ ') WHERE number = {0}",
    "body, one digit": "UPDATE rows SET body = replace(body, '1', '2') WHERE number = {0}",
    "body, not JSON": "UPDATE rows SET body = 'x' WHERE number = {0}",
    "previous": "UPDATE rows SET previous = '" + "7" * 64 + "' WHERE number = {0}",
    "hash": "UPDATE rows SET hash = '" + "7" * 64 + "' WHERE number = {0}",
    "removed": "DELETE FROM rows WHERE number = {0}",
    "renumbered": "UPDATE rows SET number = 100 + number WHERE number = {0}",
    "doubled": COPY,
    "cut": "DELETE FROM rows WHERE number >= {0}",
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_row_altered_removed_doubled_or_cut_is_found(path: Path, change: str) -> None:
    head, whole, before = ledgers.verify_ledger(path), path.read_bytes(), columns(path)
    for number in range(1, head.number + 1):
        path.write_bytes(whole)
        tamper(path, CHANGES[change].format(number))
        if columns(path) == before:  # such as a body without the digit that was to change
            continue
        with pytest.raises(TrustError):
            ledgers.verify_ledger(path, head)


def test_every_pair_of_rows_swapped_is_found(path: Path) -> None:
    head, whole = ledgers.verify_ledger(path), path.read_bytes()
    for number in range(1, head.number):
        path.write_bytes(whole)
        tamper(
            path,
            f"UPDATE rows SET number = 1000 WHERE number = {number}",
            f"UPDATE rows SET number = {number} WHERE number = {number + 1}",
            f"UPDATE rows SET number = {number + 1} WHERE number = 1000",
        )
        with pytest.raises(TrustError, match=f"row {number} was altered"):
            ledgers.verify_ledger(path, head)


def test_a_cut_tail_is_found_by_a_known_head_only(path: Path) -> None:
    head = ledgers.verify_ledger(path)
    tamper(path, "DELETE FROM rows WHERE number > 4")
    assert ledgers.verify_ledger(path).number == 4
    with pytest.raises(TrustError, match="ends at row 4 but had 14: its tail is missing"):
        ledgers.verify_ledger(path, head)


def test_missing_triggers_and_foreign_tables_are_found(path: Path) -> None:
    whole = path.read_bytes()
    tamper(path, keep_triggers=False)
    with pytest.raises(TrustError, match="tables or triggers were changed"):
        ledgers.verify_ledger(path)
    path.write_bytes(whole)
    tamper(path, "CREATE VIEW further AS SELECT * FROM rows")
    with pytest.raises(TrustError, match="tables or triggers were changed"):
        Ledger(path)


def test_a_view_that_never_ends_in_the_rows_place_is_not_asked(path: Path) -> None:
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"
    tamper(
        path,
        "ALTER TABLE rows RENAME TO old",
        f"CREATE VIEW rows AS {endless}",
        keep_triggers=False,
    )
    begun = time.monotonic()
    with pytest.raises(TrustError):
        ledgers.verify_ledger(path)
    assert time.monotonic() - begun < 2


def test_a_body_of_many_megabytes_is_not_read(path: Path) -> None:
    tamper(path, "UPDATE rows SET body = hex(zeroblob(4000000)) WHERE number = 2")
    with pytest.raises(TrustError):
        ledgers.verify_ledger(path)


def test_nothing_is_appended_to_a_damaged_tail(path: Path) -> None:
    tamper(path, "UPDATE rows SET hash = previous WHERE number = 14")
    with Ledger(path) as ledger, pytest.raises(TrustError, match="row 14 was altered"):
        ledger.append(step(1), papers.NOW)


def test_a_document_that_is_no_body_is_refused(path: Path) -> None:
    with Ledger(path) as ledger, pytest.raises(RecordError, match="can hold a Head"):
        ledger.append(ledger.head(), papers.NOW)


def test_appending_once_is_appending_once(path: Path) -> None:
    with Ledger(path) as ledger:
        first = ledger.append_once(step(1), papers.NOW)
        assert ledger.append_once(step(1), papers.NOW) == first
        assert ledger.append_once(step(2), papers.NOW).number == first.number + 1
        assert ledger.append(step(1), papers.NOW).number == first.number + 2


def test_a_newer_ledger_and_one_of_something_else_are_told(path: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 2")
    with pytest.raises(RecordError, match="version 2, expected version 1"):
        Ledger(path)
    other = tmp_path / "other.db"
    with closing(sqlite3.connect(other)) as connection:
        connection.execute("CREATE TABLE rows (a)")
    before = other.read_bytes()
    with pytest.raises(TrustError, match="not a ledger"):
        ledgers.verify_ledger(other)
    with pytest.raises(TrustError, match="not a ledger"):
        Ledger(other)
    assert other.read_bytes() == before
    other.write_bytes(b"a text that is no database" * 100)
    with pytest.raises(TrustError, match="damaged ledger"):
        Ledger(other)
    assert other.read_bytes() == b"a text that is no database" * 100


def test_reading_leaves_no_files_behind(path: Path) -> None:
    ledgers.verify_ledger(path)
    assert [file.name for file in path.parent.iterdir()] == ["ledger.db"]


def test_a_reader_sees_what_a_writer_has_just_written(path: Path) -> None:
    with Ledger(path) as ledger:
        row = ledger.append(step(1), papers.NOW)
        assert ledgers.verify_ledger(path) == row.head


def test_a_full_and_a_read_only_disk_are_told_and_lose_nothing(path: Path) -> None:
    with Ledger(path) as ledger:
        head = ledger.head()
        connection = ledger.connection
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages}")
        body = DeliveredBody(model=papers.AFTER, clients=("c" * 64,) * 1000)
        with pytest.raises(StorageError, match="full"):
            ledger.append(body, papers.NOW)
        assert ledger.verify() == head
        connection.execute("PRAGMA query_only = ON")
        with pytest.raises(StorageError, match="readonly"):
            ledger.append(step(1), papers.NOW)
    with pytest.raises(StorageError):
        Ledger(Path("/proc/ledger.db"))


def _append_many(path: Path, start: int) -> None:
    with Ledger(path) as ledger:
        for number in range(start, start + 25):
            ledger.append_once(step(number), papers.NOW)


def test_processes_that_append_at_once_lose_and_double_nothing(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    context = multiprocessing.get_context("fork")
    # Two of the three write the same transitions, as a process and its successor would.
    processes = [context.Process(target=_append_many, args=(path, at)) for at in (0, 0, 25)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert ledgers.verify_ledger(path).number == 50
    numbers = sorted(row.body["number"] for row in ledgers.rows_of_export(path))
    assert numbers == list(range(50))


WRITER = """
import sys
from pathlib import Path
from datetime import UTC, datetime
from secede.erasure.documents.ledger_rows import TransitionBody
from secede.erasure.storage.ledger import Ledger
now = datetime(2026, 11, 15, tzinfo=UTC)
with Ledger(Path(sys.argv[1])) as ledger:
    print("ready", flush=True)
    for number in range(100_000):
        body = TransitionBody(request="0" * 64, number=number, state="post-training")
        ledger.append_once(body, now)
        print(number, flush=True)
"""


def test_a_killed_writer_leaves_a_whole_ledger_and_every_row_it_reported(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    for turn in range(4):
        command = [sys.executable, "-c", WRITER, str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            time.sleep(0.02 + 0.05 * turn)
            os.kill(process.pid, signal.SIGKILL)
            said = [
                line for line in process.stdout.read().splitlines(keepends=True) if "\n" in line
            ]
        head = ledgers.verify_ledger(path)
        numbers = [row.body["number"] for row in ledgers.rows_of_export(path)]
        assert numbers == list(range(head.number))
        assert not said or int(said[-1]) < head.number


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_a_file_with_spoilt_bytes_is_refused_or_unchanged_in_what_it_says(
    path: Path, data: st.DataObject
) -> None:
    whole = path.read_bytes()
    rows, head = list(ledgers.rows_of_export(path)), ledgers.verify_ledger(path)
    spoilt = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 8))):
        spoilt[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(0, len(whole)) | st.just(len(whole)))
    path.write_bytes(bytes(spoilt[:end]))
    try:
        found = (
            list(ledgers.rows_of_export(path)) if ledgers.verify_ledger(path, head) == head else []
        )
    except SecedeError:
        found = rows
    finally:
        path.write_bytes(whole)
    assert found == rows  # the bytes held no row, or the file was refused


def test_an_expected_head_beyond_an_empty_ledger_is_missed(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(TrustError, match="ends at row 0 but had 1"):
        ledgers.verify_ledger(tmp_path / "empty.jsonl", Head(number=1, hash="0" * 64))
