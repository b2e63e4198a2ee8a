from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from secede.flower.deploy import processes

SLEEP = "import time; time.sleep(60)"


def test_a_process_that_becomes_another_program_is_still_the_same(tmp_path: Path) -> None:
    """As our own do: they write their id down, and become Flower's."""
    go = tmp_path / "go"
    program = (
        f"import os, sys, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
        f"os.execv(sys.executable, [sys.executable, '-c', {SLEEP!r}, 'later'])"
    )
    child = subprocess.Popen([sys.executable, "-c", program])
    try:
        before = processes.running_processes()[child.pid]
        go.touch()
        while "later" not in processes.running_processes()[child.pid].command:
            time.sleep(0.01)
        assert processes.stop([before], 10) == []
        assert child.pid not in processes.running_processes()
    finally:
        child.kill()


def test_one_that_does_not_listen_is_ended_by_force() -> None:
    program = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1); {SLEEP}"
    child = subprocess.Popen([sys.executable, "-uc", program], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.read(1)
    found = processes.find(child.pid, "SIG_IGN")
    assert found is not None
    assert processes.stop([found], 0.3) == []
    child.stdout.close()


def test_descendants_are_found_and_strangers_are_not() -> None:
    program = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SLEEP!r}])"
    child = subprocess.Popen([sys.executable, "-c", program])
    try:
        while not (found := processes.descendants([child.pid])):
            time.sleep(0.01)
        assert [process.parent for process in found] == [child.pid]
        assert os.getpid() not in {process.pid for process in found}
        assert processes.find(child.pid, "another command") is None
        assert processes.find(-1, "") is None
        assert processes.stop(found, 5) == []
    finally:
        child.kill()
        child.wait()


def test_the_system_without_proc_is_asked_by_ps(monkeypatch: pytest.MonkeyPatch) -> None:
    told = "  7  1 Ss  Sun Nov 15 10:00:00 2026 /bin/a -b c\n  8  7 Z  Sun Nov 15 10:00:01 2026 x\n"
    monkeypatch.setattr(processes, "_PROC", Path("/absent"))
    answer = subprocess.CompletedProcess[str]([], 0, told, "")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: answer)
    (found,) = processes.running_processes().values()
    assert found == processes.Process(7, 1, "Sun Nov 15 10:00:00 2026", "/bin/a -b c")
