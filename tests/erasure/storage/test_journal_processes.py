"""The journal under kills, and with several processes at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.erasure.questions import NOW, people
from harness.paths import TESTS
from secede.erasure.storage.journal import Journal

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(TESTS)}


def killed(folder: Path, *arguments: str) -> dict[str, int]:
    ended = subprocess.run(
        [sys.executable, "-m", "harness.erasure.killed", str(folder), *arguments],
        check=False,
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
    )
    assert ended.returncode == 0, ended.stderr
    found: dict[str, int] = json.loads(ended.stdout)
    return found


@pytest.mark.parametrize("count", [25, pytest.param(300, marks=pytest.mark.slow)])
def test_kills_at_random_times_lose_and_double_nothing(tmp_path: Path, count: int) -> None:
    assert killed(tmp_path, "random", str(count))["kills"] == count


def test_a_kill_before_any_statement_loses_and_doubles_nothing(tmp_path: Path) -> None:
    assert killed(tmp_path, "statements", "-")["kills"] > 40


def test_a_kill_while_the_file_is_made_leaves_none_or_a_whole_one(tmp_path: Path) -> None:
    assert killed(tmp_path, "creation", "-")["kills"] >= 6


PROGRAM = """
import sys
from datetime import datetime
from pathlib import Path
from secede.erasure.storage.journal_entries import Holder
from secede.erasure.storage.journal import Journal
from secede.erasure.signing.keys import Keyring
from secede.errors import SecedeError
path, keys, now = Path(sys.argv[1]), Keyring.load(Path(sys.argv[2])), sys.argv[3]
now = datetime.fromisoformat(now)
print("ready", flush=True)
sys.stdin.readline()
for name in sys.argv[5:]:
    try:
        with Journal(path) as journal:
            if sys.argv[4] == "accept":
                data = Path(name).read_bytes()
                outcome = journal.accept(data, now, keyring=keys, federation="clinics")
                print(type(outcome).__name__, outcome.entry.id)
            else:
                print("Lease", journal.lease(int(name), Holder(), now, 60).holder.pid)
    except SecedeError as error:
        print(type(error).__name__, error)
"""


def at_once(*commands: list[str]) -> list[list[str]]:
    """Run the program once per command, all let go together; return what each printed."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for command in commands
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    told = [process.communicate()[0].splitlines() for process in processes]
    assert all(process.returncode == 0 for process in processes)
    return told


def test_two_processes_accept_each_request_once(tmp_path: Path) -> None:
    names = [f"client-{number}" for number in range(8)]
    who = people(tmp_path / "keys", *names)
    path, files = tmp_path / "journal.db", []
    for name in names:
        for copy in "ab":
            files.append(tmp_path / f"{name}.{copy}")
            files[-1].write_bytes(who.ask(name))
    command = [str(path), str(who.folder), NOW.isoformat(), "accept"]
    same, other = [str(f) for f in files[::2]], [str(f) for f in files[1::2]]
    # Two carry the same requests, a third another one of each client: and nobody made the file yet.
    told = at_once([*command, *same], [*command, *same], [*command, *other])
    for number in range(len(names)):
        words = sorted(lines[number].split()[0] for lines in told)
        assert words in (
            ["Accepted", "AlreadyAccepted", "RequestError"],
            ["Accepted", "RequestError", "RequestError"],
        )
    with Journal(path) as journal:
        entries = journal.entries()
        assert sorted(entry.client for entry in entries) == names
        assert all(len(journal.transitions(entry.id)) == 1 for entry in entries)


def test_two_processes_ask_for_one_lease_and_the_second_is_told(tmp_path: Path) -> None:
    who = people(tmp_path / "keys", "north")
    path = tmp_path / "journal.db"
    with Journal(path) as journal:
        who.send(journal, who.ask("north"))
    command = [str(path), str(who.folder), NOW.isoformat(), "lease", "1"]
    told = sorted(lines[0] for lines in at_once(command, command))
    assert told[0].startswith("Lease ")
    holder = told[0].split()[1]
    assert told[1].startswith(
        f"RecordError request 1 is leased by process {holder} until 2026-11-15T12:01:00Z"
    )
