"""Processes by their ids, and never a stranger's: an id may be given to another process later.

A process is known by its id and the moment it started, and is ours by its command line. Where there
is /proc, those that lost their parents are found as well, by what stands in their environment.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from secede import files
from secede.errors import RecordError, SecedeError, StorageError
from secede.flower.deploy import launch
from secede.flower.deploy.project import SUPERLINK, Project

_PROC = Path("/proc")


@dataclass(frozen=True)
class Process:
    """A process at one moment."""

    pid: int
    parent: int
    started: str  # stays when it becomes another program; its command does not
    command: str


def running_processes() -> dict[int, Process]:
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
    found = running_processes().get(pid)
    return found if found is not None and needle in found.command else None


def descendants(pids: Collection[int]) -> list[Process]:
    """Return all that descend from `pids`, without themselves."""
    known, found, above = running_processes(), [], set(pids)
    while above:
        next_ = [p for p in known.values() if p.parent in above and p.pid not in pids]
        found += next_
        above = {p.pid for p in next_}
    return found


def with_environment(name: str, value: str) -> list[Process]:
    """Return the processes whose environment says NAME=VALUE, where the system tells it."""
    wanted, found = f"{name}={value}".encode(), []
    for process in running_processes().values():
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
    known = running_processes()
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


_WRITING = 30.0  # seconds that a new process has to write its id down
_MOMENT = 2.0  # seconds


@contextmanager
def locked(project: Project) -> Iterator[None]:
    """Let one command at a time start and stop the project's processes."""
    path = project.state / "lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}") from error
    with ExitStack() as stack:
        try:  # a process that is only just being started may have the lock for a moment
            stack.enter_context(files.lock(path, timeout=_MOMENT, mode=0o600))
        except files.LockedError:
            raise RecordError(
                f"another command starts or stops the processes of {project.folder}: wait for it"
            ) from None
        yield


def running(project: Project, name: str) -> Process | None:
    """Return the SuperLink's or a site's process, if it lives and is ours."""
    try:
        pid = int(_path(project, name).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    needle = str(project.database if name == SUPERLINK else project.key(name))
    return find(pid, needle)


def start(project: Project, name: str, command: list[str]) -> subprocess.Popen[bytes]:
    """Start a process that outlives this one; it writes its own id down first."""
    path, log = _path(project, name), project.log(name)
    try:
        for folder in (path.parent, log.parent, project.folder / "flower" / name):
            folder.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            begun = subprocess.Popen(
                [sys.executable, "-I", launch.__file__, str(path), *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=_threads(project.environment(name)),
                start_new_session=True,  # an interrupt in the terminal is not for it
            )
    except OSError as error:
        raise StorageError(f"cannot start {name}: {error.strerror}") from error
    deadline = time.monotonic() + _WRITING
    while running(project, name) is None:
        if begun.poll() is not None or time.monotonic() > deadline:
            begun.kill()
            begun.wait()
            raise SecedeError(f"{name} did not start: {log_tail(project, name)}")
        time.sleep(0.05)
    return begun


def forget(project: Project, name: str) -> None:
    """Remove what is written down about a process that ended."""
    _path(project, name).unlink(missing_ok=True)


def registered(project: Project) -> dict[str, str]:
    """Return the nodes that the SuperLink's database knows, by site."""
    try:
        found = json.loads((project.state / "nodes.json").read_text(encoding="utf-8"))
        return {str(name): str(node) for name, node in found.items()}
    except (OSError, ValueError, AttributeError):
        return {}


def write_registered(project: Project, found: dict[str, str]) -> None:
    """Write the known nodes down."""
    files.write_text(project.state / "nodes.json", json.dumps(found, indent=1) + "\n")


def node_in_log(project: Project, site: str, since: int = 0) -> str | None:
    """Return the node that a SuperNode said it is, after its log had `since` bytes."""
    said = re.findall(r"SuperNode ID: (\d+)", _read(project.log(site), since))
    return said[-1] if said else None


def was_refused(project: Project, site: str, since: int = 0) -> bool:
    """Return whether the SuperLink turned a SuperNode away because its key is in use."""
    return "Failed to activate SuperNode" in _read(project.log(site), since)


def log_size(project: Project, name: str) -> int:
    """Return how much a process and its predecessors printed so far."""
    try:
        return project.log(name).stat().st_size
    except OSError:
        return 0


def log_tail(project: Project, name: str) -> str:
    """Return the end of what a process printed."""
    lines = [line for line in _read(project.log(name)).splitlines() if line.strip()]
    return re.sub(r"\x1b\[[0-9;]*m", "", " / ".join(lines[-3:]))[-500:] or "it printed nothing"


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port that nobody listens on right now."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as found:
        found.bind((host, 0))
        return int(found.getsockname()[1])


def is_free(host: str, port: int) -> bool:
    """Return whether a port can be listened on."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((host, port))
        except OSError:
            return False
        return True


def _threads(environment: dict[str, str]) -> dict[str, str]:
    """Give each process one thread for its arithmetic: in a try-out all share one machine."""
    return {"OMP_NUM_THREADS": "1", **environment}


def _path(project: Project, name: str) -> Path:
    return project.state / f"{name}.pid"


def _read(path: Path, since: int = 0) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(since, path.stat().st_size - 1_000_000))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
