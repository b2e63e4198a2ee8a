"""Erasures that are killed, starved of disk, or begun twice, end as those left in peace."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from harness.erasure import small
from harness.erasure.interrupted import OPTIONS
from harness.paths import TESTS
from secede.erasure.storage.home import Home
from secede.erasure.workflow import erase
from secede.errors import RecordError, SecedeError, StorageError

PATHS = (str(TESTS), os.environ.get("PYTHONPATH", ""))
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, PATHS))}
MEMORY = Path("/dev/shm")  # where there is one: a kill does not care what reached the disk
Interrupted = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def interrupted() -> Iterator[Interrupted]:
    """A process that has a trained home, kills erasures in copies of it, and tells what it saw."""
    where = MEMORY if os.access(MEMORY, os.W_OK) else None
    with TemporaryDirectory(dir=where) as folder:
        process = subprocess.Popen(
            [sys.executable, "-m", "harness.erasure.interrupted", folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        asked, told = process.stdin, process.stdout

        def ask(how: str, kind: str, count: int | str) -> dict[str, Any]:
            print(how, kind, count, file=asked, flush=True)
            found: dict[str, Any] = json.loads(told.readline() or '{"failed": "it ended"}')
            assert "failed" not in found, found["failed"]
            return found

        yield ask
        asked.close()
        told.close()
        assert process.wait() == 0


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("count", [12, pytest.param(200, marks=pytest.mark.kills)])
def test_kills_at_random_times_change_nothing(interrupted: Interrupted, count: int) -> None:
    assert interrupted("random", "honest", count)["kills"] == count


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("kind", "beyond", "least"),
    [
        ("honest", "-", 7),
        ("lazy", "honest", 8),
        ("hopeless", "honest", 8),
        ("accepted", "honest", 8),
    ],
)
def test_a_kill_at_each_kind_of_write_and_at_every_transition_changes_nothing(
    interrupted: Interrupted, kind: str, beyond: str, least: int
) -> None:
    found = interrupted("kinds", kind, beyond)
    assert found["transitions"] >= least
    assert found["kills"] == found["kinds"] >= 2 * found["transitions"]


@pytest.mark.kills
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("kind", "least"), [("honest", 200), ("lazy", 200), ("hopeless", 150)])
def test_a_kill_at_any_write_changes_nothing(
    interrupted: Interrupted, kind: str, least: int
) -> None:
    found = interrupted("writes", kind, 1)
    assert found["kills"] == found["writes"] >= least


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home with one request received."""
    home = small.make(tmp_path_factory.mktemp("asked"))
    erase.receive(home, small.ask(home), small.NOW)
    return home


@pytest.fixture(scope="module")
def peaceful(asked: Home, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    home = small.copy(asked, tmp_path_factory.mktemp("peace") / "home")
    small.erase(home, 1, how=OPTIONS)
    return small.timeless(home)


class Worker:
    """A fork; it says lines over a pipe and may be told to go on over another."""

    def __init__(self, work: Callable[[Callable[[str], None], Callable[[], None]], None]) -> None:
        told, telling = os.pipe()
        waiting, self._go = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                work(
                    lambda line: (os.write(telling, f"{line}\n".encode()), None)[1],
                    lambda: (os.read(waiting, 1), None)[1],
                )
                os._exit(0)
            except SecedeError as error:
                os.write(telling, f"{type(error).__name__}: {error}\n".encode())
                os._exit(9)
            except BaseException as error:
                os.write(telling, f"{error!r}\n".encode())
                os._exit(1)
        os.close(telling)
        os.close(waiting)
        self.lines = os.fdopen(told)

    def go_on(self) -> None:
        os.write(self._go, b"x")

    def ended(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def paused(home: Home) -> Worker:
    """Return a process that has come to the guard and waits there."""

    def work(tell: Callable[[str], None], wait: Callable[[], None]) -> None:
        def watch(line: str) -> None:
            tell(line)
            if line == "guarded":
                wait()

        small.erase(home, 1, how=OPTIONS, tell=watch)

    worker = Worker(work)
    for line in worker.lines:
        if line == "guarded\n":
            return worker
    raise AssertionError("it never came to the guard")


def test_a_second_process_is_told_who_works_and_until_when(
    asked: Home, peaceful: dict[str, Any], tmp_path: Path
) -> None:
    home = small.copy(asked, tmp_path / "home")
    first = paused(home)
    with pytest.raises(
        RecordError,
        match=rf"process {first.pid} on \S+ \(request 1, lease until 2026-11-15T12:10:00Z\)",
    ) as caught:
        small.erase(home, 1, how=OPTIONS)
    assert caught.value.exit_code == 5
    first.go_on()
    assert first.ended() == 0
    assert small.timeless(home) == peaceful


def test_the_lease_of_a_killed_process_blocks_nobody(
    asked: Home, peaceful: dict[str, Any], tmp_path: Path
) -> None:
    home = small.copy(asked, tmp_path / "home")
    first = paused(home)
    os.kill(first.pid, signal.SIGKILL)
    assert first.ended() == -signal.SIGKILL
    small.erase(home, 1, how=OPTIONS)  # in the same second
    assert small.timeless(home) == peaceful


@pytest.mark.parametrize(
    "kilobytes", [1, *(pytest.param(size, marks=pytest.mark.slow) for size in (0, 4, 40, 48, 64))]
)
def test_files_that_may_not_grow_are_a_clear_error_and_nothing_is_lost(
    asked: Home, peaceful: dict[str, Any], tmp_path: Path, kilobytes: int
) -> None:
    home = small.copy(asked, tmp_path / "home")

    def starved(tell: Callable[[str], None], wait: Callable[[], None]) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (kilobytes << 10, kilobytes << 10))
        small.erase(home, 1, how=OPTIONS)

    worker = Worker(starved)
    assert worker.ended() == 9
    (line,) = worker.lines.read().splitlines()
    assert line.startswith("StorageError: cannot")
    assert str(home.path) in line
    way = small.way(home)
    assert way == peaceful["way"][: len(way)]
    small.erase(home, 1, how=OPTIONS)
    assert small.timeless(home) == peaceful


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MB, where that may be mounted."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = shutil.which("mount")
    command = [str(mount), "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)]
    if mount is None or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("no file system may be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(path: Path, leave: int) -> None:
    """Write a file that leaves so many bytes on its disk."""
    free = shutil.disk_usage(path.parent).free
    with path.open("wb") as file:
        file.write(bytes(max(0, free - leave)))


@pytest.mark.parametrize(
    "leave",
    [0, *(pytest.param(size, marks=pytest.mark.slow) for size in range(20_000, 220_000, 20_000))],
)
def test_a_full_disk_is_a_clear_error_and_space_lets_it_go_on(
    asked: Home, peaceful: dict[str, Any], disk: Path, leave: int
) -> None:
    home = small.copy(asked, disk / "home")
    fill(disk / "filler", leave)
    with pytest.raises(StorageError, match=r"(full|No space|disk I/O|unable to open)"):
        small.erase(home, 1, how=OPTIONS)
    (disk / "filler").unlink()
    way = small.way(home)
    assert way == peaceful["way"][: len(way)]
    small.erase(home, 1, how=OPTIONS)
    assert small.timeless(home) == peaceful


def test_a_read_only_disk_is_a_clear_error_and_nothing_is_lost(
    asked: Home, peaceful: dict[str, Any], disk: Path
) -> None:
    home = small.copy(asked, disk / "home")
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    with pytest.raises(StorageError, match=r"(read-?only|Read-only)"):
        small.erase(home, 1, how=OPTIONS)
    subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
    assert small.way(home) == ["received"]
    small.erase(home, 1, how=OPTIONS)
    assert small.timeless(home) == peaceful
