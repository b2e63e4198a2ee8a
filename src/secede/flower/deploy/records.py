"""Which process is which: ids written down by the processes themselves, checked when read."""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from secede import files
from secede.errors import RecordError, SecedeError, StorageError
from secede.flower.deploy import launch, processes
from secede.flower.deploy.processes import Process
from secede.flower.deploy.project import SUPERLINK, Project

_WRITING = 30.0  # seconds that a new process has to write its id down
_MOMENT = 2.0  # seconds


@contextmanager
def locked(project: Project) -> Iterator[None]:
    """Let one command at a time start and stop the project's processes."""
    path = project.state / "lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror}") from error
    try:
        if not _lock(descriptor):
            raise RecordError(
                f"another command starts or stops the processes of {project.folder}: wait for it"
            )
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    """Take the lock, which a process that is only just being started may hold for a moment."""
    end = time.monotonic() + _MOMENT
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                return False
            time.sleep(0.05)
        else:
            return True


def running(project: Project, name: str) -> Process | None:
    """Return the SuperLink's or a site's process, if it lives and is ours."""
    try:
        pid = int(_path(project, name).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    needle = str(project.database if name == SUPERLINK else project.key(name))
    return processes.find(pid, needle)


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
            raise SecedeError(f"{name} did not start: {last_words(project, name)}")
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


def keep_registered(project: Project, found: dict[str, str]) -> None:
    """Write the known nodes down."""
    files.write_text(project.state / "nodes.json", json.dumps(found, indent=1) + "\n")


def told_node(project: Project, site: str, since: int = 0) -> str | None:
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


def last_words(project: Project, name: str) -> str:
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
