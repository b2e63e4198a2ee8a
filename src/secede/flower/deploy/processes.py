"""The project's processes: found, started and stopped by id, without touching any other process.

An id may be given to another process later. So a process is identified by its id and start time,
and is the project's only if its command line says so. Where there is /proc, processes that lost
their parents are found as well, by their environment.
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
from secede.flower.deploy import site_accounts
from secede.flower.deploy.project import SUPERLINK, Project

_WRITE_PID = Path(__file__).with_name("write_pid.py")
_PROC = Path("/proc")


@dataclass(frozen=True)
class Process:
    """A process, as the system lists it."""

    pid: int
    parent: int
    started: str  # unchanged when the process becomes another program; the command changes
    command: str


def running_processes() -> dict[int, Process]:
    """Return all processes but zombies, by id."""
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


def find(pid: int, argument: str) -> Process | None:
    """Return the process with this id, if `argument` is in its command line."""
    if not 0 < pid < 1 << 31:  # other numbers mean groups of processes
        return None
    with suppress(OSError):  # not our child, or no process at all
        os.waitpid(pid, os.WNOHANG)
    process = running_processes().get(pid)
    return process if process is not None and argument in process.command else None


def descendants(pids: Collection[int]) -> list[Process]:
    """Return all child processes of `pids`, their children, and so on."""
    every, below, parents = running_processes(), list[Process](), set(pids)
    while parents:
        children = [p for p in every.values() if p.parent in parents and p.pid not in pids]
        below += children
        parents = {p.pid for p in children}
    return below


def with_environment(name: str, value: str) -> list[Process]:
    """Return the other processes with NAME=VALUE in their environment; none without /proc."""
    wanted, matches = f"{name}={value}".encode(), []
    for process in running_processes().values():
        with suppress(OSError):
            environment = (_PROC / str(process.pid) / "environ").read_bytes().split(b"\0")
            if wanted in environment and process.pid != os.getpid():
                matches.append(process)
    return matches


def stop(processes: Collection[Process], timeout: float) -> list[Process]:
    """Terminate processes, kill those that outlive the timeout; return any that remain."""
    alive = _alive(processes)
    for number, wait in ((signal.SIGTERM, timeout), (signal.SIGKILL, 5.0)):
        for process in alive:
            with suppress(ProcessLookupError):
                os.kill(process.pid, number)
        alive = _alive_after(alive, wait)
        if not alive:
            break
    return alive


def _alive_after(processes: Collection[Process], timeout: float) -> list[Process]:
    deadline = time.monotonic() + timeout
    while (alive := _alive(processes)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return alive


def _alive(processes: Collection[Process]) -> list[Process]:
    for process in processes:
        with suppress(OSError):
            os.waitpid(process.pid, os.WNOHANG)
    now = running_processes()
    return [p for p in processes if p.pid in now and now[p.pid].started == p.started]


def _from_proc(pid: int) -> Process | None:
    try:
        stat = (_PROC / str(pid) / "stat").read_text(errors="replace")
        command = (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return None  # it ended meanwhile
    fields = stat[stat.rindex(")") + 2 :].split()
    if fields[0] in "ZX":
        return None
    line = command.replace(b"\0", b" ").decode(errors="replace").strip()
    return Process(pid, int(fields[1]), fields[19], line)


_START_TIMEOUT = 30.0  # seconds for a new process to write its id
_LOCK_TIMEOUT = 2.0  # seconds


@contextmanager
def locked(project: Project) -> Iterator[None]:
    """Let one command at a time start and stop the project's processes."""
    path = project.state / "lock"
    try:
        with files.private():
            files.make_folder(path.parent)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}") from error
    with ExitStack() as stack:
        try:  # a process that is just being started may hold the lock for a moment
            stack.enter_context(files.lock(path, timeout=_LOCK_TIMEOUT, mode=0o600))
        except files.LockedError:
            raise RecordError(
                f"another command is starting or stopping the processes of {project.folder}: wait "
                "until it ends"
            ) from None
        yield


def running(project: Project, name: str) -> Process | None:
    """Return the running process of the SuperLink or of a site."""
    try:
        pid = int(_path(project, name).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    argument = str(project.database if name == SUPERLINK else project.key(name))
    return find(pid, argument)


def start(project: Project, name: str, command: list[str]) -> subprocess.Popen[bytes]:
    """Start a process that outlives this one; first of all it writes its id to a file.

    A site with an account of its own takes it on after that: id and log stay out of its reach.
    """
    path, log = _path(project, name), project.log(name)
    environment = project.environment(name)
    if (account := site_accounts.of(project, name)) is not None:
        environment = site_accounts.environment(environment, account)
        command = account.command(Path(environment["FLWR_HOME"]), command)
    kept = [] if name == SUPERLINK else [project.updates_folder(name)]
    try:
        with files.private():
            for folder in (path.parent, log.parent, project.folder / "flower" / name, *kept):
                files.make_folder(folder)
        log.touch(mode=0o600)
        with log.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-I", str(_WRITE_PID), str(path), *command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # One thread for arithmetic: in a try-out all share one machine.
                env={"OMP_NUM_THREADS": "1", **environment},
                start_new_session=True,  # an interrupt in the terminal does not reach it
            )
    except OSError as error:
        raise StorageError(f"cannot start {name}: {error.strerror}") from error
    deadline = time.monotonic() + _START_TIMEOUT
    while running(project, name) is None:
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            process.wait()
            raise SecedeError(f"{name} did not start: {log_tail(project, name)}")
        time.sleep(0.05)
    return process


def forget(project: Project, name: str) -> None:
    """Delete the id of a process that ended."""
    _path(project, name).unlink(missing_ok=True)


def registered(project: Project) -> dict[str, str]:
    """Return the node ids under which the SuperLink's database has the sites."""
    try:
        nodes = json.loads((project.state / "nodes.json").read_text(encoding="utf-8"))
        return {str(name): str(node) for name, node in nodes.items()}
    except (OSError, ValueError, AttributeError):
        return {}


def write_registered(project: Project, nodes: dict[str, str]) -> None:
    """Write the node ids of the registered sites."""
    with files.private():
        files.write_text(project.state / "nodes.json", json.dumps(nodes, indent=1) + "\n")


def node_in_log(project: Project, site: str, since: int = 0) -> str | None:
    """Return the last node id that a SuperNode logged after the first `since` bytes of its log."""
    ids = re.findall(r"SuperNode ID: (\d+)", _read(project.log(site), since))
    return ids[-1] if ids else None


def was_refused(project: Project, site: str, since: int = 0) -> bool:
    """Return whether the SuperLink refused a SuperNode because its key is in use."""
    return "Failed to activate SuperNode" in _read(project.log(site), since)


def log_size(project: Project, name: str) -> int:
    """Return the size of a process's log in bytes."""
    try:
        return project.log(name).stat().st_size
    except OSError:
        return 0


def log_tail(project: Project, name: str) -> str:
    """Return the last lines of a process's log."""
    lines = [line for line in _read(project.log(name)).splitlines() if line.strip()]
    return re.sub(r"\x1b\[[0-9;]*m", "", " / ".join(lines[-3:]))[-500:] or "it printed nothing"


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port on which no program listens right now."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        listener.bind((host, 0))
        return int(listener.getsockname()[1])


def is_free(host: str, port: int) -> bool:
    """Return whether no program listens on a port."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError:
            return False
        return True


def _path(project: Project, name: str) -> Path:
    return project.state / f"{name}.pid"


def _read(path: Path, since: int = 0) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(since, path.stat().st_size - 1_000_000))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
