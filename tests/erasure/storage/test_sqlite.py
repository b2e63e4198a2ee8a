from __future__ import annotations

import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from harness.erasure.questions import NOW, People, people
from secede.erasure.storage.journal import Journal
from secede.errors import RecordError, SecedeError, StorageError


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> People:
    return people(tmp_path_factory.mktemp("keys"), "north", "south")


def content(folder: Path) -> dict[str, bytes]:
    """Return the files that hold data; SQLite's -shm is an index that may always be rebuilt."""
    return {
        path.name: path.read_bytes()
        for path in folder.iterdir()
        if not path.name.endswith("-shm") and path.stat().st_size
    }


def refused(path: Path, told: str = "journal") -> None:
    before = content(path.parent)
    with pytest.raises(RecordError, match=told):
        Journal(path)
    assert content(path.parent) == before


def test_a_file_of_another_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    Journal(path).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 2")
    refused(path, "journal of version 2, expected version 1: use the release")


@pytest.mark.parametrize(
    "found", [b"", b"\0" * 4096, b"not a database", b"SQLite format 3\0", b"x" * 100_000]
)
def test_a_file_that_is_no_journal_is_refused_and_left_alone(tmp_path: Path, found: bytes) -> None:
    path = tmp_path / "journal.db"
    path.write_bytes(found)
    refused(path)
    assert path.read_bytes() == found


def test_another_programs_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    refused(path, "not a journal")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 1")
    refused(path, "not a journal")


def test_a_dropped_trigger_or_a_missing_row_is_damage(two: People, tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with Journal(path) as journal:
        two.send(journal, two.ask())
    shutil.copy(path, tmp_path / "copy")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DELETE FROM requests")  # foreign keys are off in a plain connection
        connection.commit()
    refused(path, "a row is missing")
    shutil.copy(tmp_path / "copy", path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("DROP TRIGGER transitions_are_not_changed")
        connection.commit()
    refused(path, "tables or triggers were changed")


def test_a_log_without_its_file_is_not_given_to_a_new_one(tmp_path: Path) -> None:
    (tmp_path / "journal.db-wal").write_bytes(b"left over")
    refused(tmp_path / "journal.db", "is missing, but its log")


def full(two: People, path: Path) -> bytes:
    with Journal(path) as journal:
        for client in ("north", "south"):
            two.send(journal, two.ask(client))
    return path.read_bytes()


def test_a_truncated_file_is_refused_and_left_alone(two: People, tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    whole = full(two, path)
    for length in (1, 50, 100, 1000, 4096, len(whole) // 2, len(whole) - 4096, len(whole) - 1):
        path.write_bytes(whole[:length])
        refused(path)
    path.write_bytes(whole)
    Journal(path).close()


def test_a_damaged_file_with_a_log_beside_it_keeps_both(two: People, tmp_path: Path) -> None:
    path, copy = tmp_path / "a" / "journal.db", tmp_path / "b"
    full(two, path)
    with Journal(path) as journal:
        journal.acknowledge(1, NOW)
        shutil.copytree(path.parent, copy)  # as a kill would leave it
    assert (copy / "journal.db-wal").stat().st_size > 0
    data = bytearray((copy / "journal.db").read_bytes())
    data[4096 * 3 : 4096 * 4] = b"\xaa" * 4096
    (copy / "journal.db").write_bytes(data)
    refused(copy / "journal.db", "damaged journal")


@pytest.mark.parametrize("count", [150, pytest.param(10_000, marks=pytest.mark.slow)])
def test_flipped_bytes_give_our_errors_only(two: People, tmp_path: Path, count: int) -> None:
    path = tmp_path / "journal.db"
    whole = full(two, path)
    dice, found = random.Random(3), 0
    for _ in range(count):
        changed = bytearray(whole)
        for _ in range(dice.randint(1, 20)):
            changed[dice.randrange(len(changed))] ^= dice.randrange(1, 256)
        path.write_bytes(changed)
        try:
            with Journal(path) as journal:
                for entry in journal.entries():
                    journal.transitions(entry.id)
                    journal.request(entry.id)
                journal.acknowledge(1, NOW)
        except SecedeError as error:
            found += "\n" not in str(error)
        for leftover in ("-wal", "-shm"):
            (tmp_path / f"journal.db{leftover}").unlink(missing_ok=True)
    assert found > count // 4  # most flips hit bytes that nothing uses


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """Give a folder that other users can reach, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp(prefix="secede-test-"))
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def as_nobody(program: str) -> None:
    """Run a program without root's right to write everywhere."""
    code = (
        "import os, sys, sqlite3\nfrom datetime import UTC, datetime\nfrom pathlib import Path\n"
        "from secede.erasure.storage.journal import Journal\n"
        "from secede.errors import StorageError\n"
        "import _strptime\nif os.getuid() == 0: os.setuid(65534)\n" + program
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr


def test_a_read_only_disk_is_a_storage_error(open_folder: Path, two: People) -> None:
    path = open_folder / "journal.db"
    with Journal(path) as journal:
        two.send(journal, two.ask())
    path.chmod(0o444)
    open_folder.chmod(0o555)
    as_nobody(
        f"folder = Path({str(open_folder)!r})\n"
        "for path in (folder / 'journal.db', folder / 'new.db', folder / 'deep' / 'new.db'):\n"
        "    try: Journal(path)\n"
        "    except StorageError as error: print(error, file=sys.stderr)\n"
        "    else: sys.exit(f'{path} was opened')\n"
        "with Journal(folder / 'journal.db', read_only=True) as journal:\n"
        "    assert len(journal.entries()) == 1\n"
        "    try: journal.acknowledge(1, datetime.now(UTC))\n"
        "    except StorageError: pass\n"
        "    else: sys.exit('written')\n"
    )
    assert [p.name for p in open_folder.iterdir()] == ["journal.db"]


def test_a_full_disk_is_a_storage_error_and_leaves_no_half_row(two: People, tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with Journal(path) as journal:
        two.send(journal, two.ask("north"))
        connection = journal.connection
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages}")
        journal.set_quota("south", 10_000)
        accepted = 0

        def fill() -> None:
            nonlocal accepted
            for _ in range(100):
                two.send(journal, two.ask("south"))
                connection.execute("UPDATE requests SET status = 'closed' WHERE client = 'south'")
                accepted += 1

        with pytest.raises(StorageError, match="full"):
            fill()
        connection.execute("PRAGMA max_page_count = 1000000")
        assert len(journal.entries()) == 1 + accepted
        two.send(journal, two.ask("south"))  # there is room again
    with Journal(path) as journal:
        assert len(journal.entries()) == 2 + accepted
        for entry in journal.entries():
            assert len(journal.transitions(entry.id)) == 1


def test_a_file_that_may_not_grow_is_a_storage_error(open_folder: Path, two: People) -> None:
    path = open_folder / "journal.db"
    with Journal(path) as journal:
        two.send(journal, two.ask())
    code = (
        "import resource, sys\nfrom datetime import UTC, datetime\nfrom pathlib import Path\n"
        "from secede.erasure.storage.journal import Journal\n"
        "from secede.errors import StorageError\n"
        f"folder = Path({str(open_folder)!r})\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))\n"
        "for act in (lambda: Journal(folder / 'new.db'),\n"
        "            lambda: Journal(folder / 'journal.db').acknowledge(1, datetime.now(UTC))):\n"
        "    try: act()\n"
        "    except StorageError: pass\n"
        "    else: sys.exit('written')\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    assert not (open_folder / "new.db").exists()
    with Journal(path) as journal:
        assert journal.entries()[0].acknowledged is None
    assert not [name for name in os.listdir(open_folder) if name.endswith(".part")]
