"""Processes by their ids, and never a stranger's: an id may be given to another process later.

A process is known by its id and the moment it started, and is ours by its command line. Where there
is /proc, those that lost their parents are found as well, by what stands in their environment.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")


@dataclass(frozen=True)
class Process:
    """A process at one moment."""

    pid: int
    parent: int
    started: str  # stays when it becomes another program; its command does not
    command: str


def table() -> dict[int, Process]:
    """Return all processes that are more than a leftover entry."""
    if (_PROC / "self" / "stat").exists():
        numbers = [int(entry) for entry in os.listdir(_PROC) if entry.isdigit()]
        return {p.pid: p for number in numbers if (p := _from_proc(number))}
    command = ["ps", "-A", "-ww", "-o", "pid=,ppid=,stat=,lstart=,command="]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rows = (line.split(None, 8) for line in listed.splitlines())  # lstart is five words
    return {
        int(row[0]): Process(int(row[0]), int(row[1]), " ".join(row[3:8]), row[8])
        for row in rows
        if len(row) == 9 and not row[2].startswith("Z")
    }


def find(pid: int, needle: str) -> Process | None:
    """Return the process with this id, if `needle` is in its command line."""
    if not 0 < pid < 1 << 31:  # to the system, others mean groups of processes
        return None
    with suppress(OSError):  # not our child, or none at all
        os.waitpid(pid, os.WNOHANG)
    found = table().get(pid)
    return found if found is not None and needle in found.command else None


def family(pids: Collection[int]) -> list[Process]:
    """Return all that descend from `pids`, without themselves."""
    known, found, above = table(), [], set(pids)
    while above:
        next_ = [p for p in known.values() if p.parent in above and p.pid not in pids]
        found += next_
        above = {p.pid for p in next_}
    return found


def marked(name: str, value: str) -> list[Process]:
    """Return the processes whose environment says NAME=VALUE, where the system tells it."""
    wanted, found = f"{name}={value}".encode(), []
    for process in table().values():
        with suppress(OSError):
            environment = (_PROC / str(process.pid) / "environ").read_bytes().split(b"\0")
            if wanted in environment and process.pid != os.getpid():
                found.append(process)
    return found


def stop(processes: Collection[Process], seconds: float) -> list[Process]:
    """Ask to end, wait, then end by force; return those that outlived even that."""
    left = _still(processes)
    for number, wait in ((signal.SIGTERM, seconds), (signal.SIGKILL, 5.0)):
        for process in left:
            with suppress(ProcessLookupError):
                os.kill(process.pid, number)
        left = _gone_within(left, wait)
        if not left:
            break
    return left


def _gone_within(processes: Collection[Process], seconds: float) -> list[Process]:
    deadline = time.monotonic() + seconds
    while (left := _still(processes)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def _still(processes: Collection[Process]) -> list[Process]:
    for process in processes:
        with suppress(OSError):
            os.waitpid(process.pid, os.WNOHANG)
    known = table()
    return [p for p in processes if p.pid in known and known[p.pid].started == p.started]


def _from_proc(pid: int) -> Process | None:
    try:
        stat = (_PROC / str(pid) / "stat").read_text(errors="replace")
        command = (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return None  # it ended meanwhile
    fields = stat[stat.rindex(")") + 2 :].split()
    if fields[0] in "ZX":
        return None
    told = command.replace(b"\0", b" ").decode(errors="replace").strip()
    return Process(pid, int(fields[1]), fields[19], told)
