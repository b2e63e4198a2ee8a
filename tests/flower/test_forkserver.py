"""The server that forks Flower's programs for the tests of real deployments."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.flower import forkserver
from secede.flower.deploy import processes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it watches /proc and pidfds")
PROGRAM = """
import os, sys, time
def main():
    print(os.getpid(), os.getcwd(), os.environ.get("A"), os.environ.get("B"), *sys.argv[1:])
    print(input(), file=sys.stderr)
    time.sleep(float(sys.argv[1]))
    return 7
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "told.py").write_text(PROGRAM)
    environment = {"PYTHONPATH": str(tmp_path), "A": "server", "MARK": str(tmp_path)}
    log = tmp_path / "log"
    with forkserver.serving(environment, log, {"tell": "told:main"}, apps=()) as folder:
        yield folder
    assert processes.with_environment("MARK", str(tmp_path)) == []


def start(folder: Path, seconds: float) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(folder / "tell"), str(seconds)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        env={"B": "shim"},
    )


def running(folder: Path) -> tuple[subprocess.Popen[str], int]:
    """Return a shim, and the process id of the child that runs for it."""
    process = start(folder, 60)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("hello\n")
    process.stdin.flush()
    return process, int(process.stdout.readline().split()[0])


def test_a_child_is_the_process_that_was_asked_for(folder: Path) -> None:
    process = start(folder, 0)
    out, err = process.communicate("hello\n")
    assert out.split()[1:] == [str(folder), "None", "shim", "0"]
    assert err == "hello\n"
    assert process.returncode == 7


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_who_kills_the_shim_kills_the_child(folder: Path, number: signal.Signals) -> None:
    process, pid = running(folder)
    os.kill(process.pid, number)
    process.wait()
    deadline = time.monotonic() + 10
    while pid in processes.running_processes():
        assert time.monotonic() < deadline, "the child lives on"
        time.sleep(0.01)


LEFT = """
import gc, os

def main():
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(8)]
    gc.collect()
    for descriptor in opened:
        os.fstat(descriptor)  # EBADF if an object of the server's has closed it
    print(sorted(os.readlink(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd")
                 if os.path.exists(f"/proc/self/fd/{each}")))
"""


def test_nothing_of_the_server_is_left_in_a_child_or_closed_later(tmp_path: Path) -> None:
    (tmp_path / "told.py").write_text(LEFT)
    environment = {"PYTHONPATH": str(tmp_path), "MARK": str(tmp_path)}
    with forkserver.serving(
        environment, tmp_path / "log", {"tell": "told:main"}, apps=()
    ) as folder:
        for _ in range(3):
            process = start(folder, 0)
            out, err = process.communicate("")
            assert (process.returncode, err) == (0, "")
            assert "socket:" not in out
            assert "pidfd" not in out
            assert "eventpoll" not in out


def test_nothing_outlives_the_server(tmp_path: Path) -> None:
    (tmp_path / "told.py").write_text(PROGRAM)
    environment = {"PYTHONPATH": str(tmp_path), "MARK": str(tmp_path)}
    log = tmp_path / "log"
    with forkserver.serving(environment, log, {"tell": "told:main"}, apps=()) as folder:
        process, pid = running(folder)
        assert pid in {each.pid for each in processes.with_environment("MARK", str(tmp_path))}
    assert processes.with_environment("MARK", str(tmp_path)) == []
    assert process.wait(5) == 128 + signal.SIGKILL
