"""Runs of the project's app on its SuperLink: started, followed, waited for with an end.

Flower does not go on with a run that was cut short; the app does, in a new run of the same kind.
"""

from __future__ import annotations

import queue
import re
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from secede.errors import SecedeError, SilentError
from secede.flower.deploy import programs, records
from secede.flower.deploy.project import CONNECTION, OPERATOR, SUPERLINK, Project, program

Tell = Callable[[str], None]
Config = Mapping[str, str | int | float | bool]  # that changes the app's own
COMPLETED = "finished:completed"
_LOOK = 10.0  # seconds between two looks at a run's status
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_KIND = re.compile(r"^(DEBUG|INFO) *:\s*")  # of a log line; warnings and errors show theirs


def run(project: Project, config: Config, *, seconds: float, tell: Tell) -> str:
    """Run the app with `config` to its end and return the run's number; raise if it fails."""
    number = start(project, config)
    tell(f"run {number} started; waiting at most {seconds:g} seconds for its end")
    status = follow(project, number, seconds=seconds, tell=tell)
    if status != COMPLETED:
        raise SecedeError(
            f"run {number} ended as {status}: see above and {project.log(SUPERLINK)}; the same "
            "command goes on after the last round that was completed"
        )
    return number


def start(project: Project, config: Config) -> str:
    """Start a run and return its number."""
    _check_running(project)
    told = " ".join(f"{key}={_toml(value)}" for key, value in config.items())
    override = ("--run-config", told) if told else ()
    return str(programs.flwr(project, "run", str(project.app), *override)["run-id"])


def status(project: Project, number: str) -> str:
    """Return how a run stands, such as running or finished:completed."""
    found = programs.flwr(project, "list", "--run-id", number)["runs"]
    return str(found[0]["status"])


def follow(project: Project, number: str, *, seconds: float, tell: Tell) -> str:
    """Pass on what a run prints, until it has finished; return its status."""
    deadline = time.monotonic() + seconds
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            raise SilentError(
                f"run {number} has not finished within {seconds:g} seconds; it goes on: "
                f"flwr log {number} {CONNECTION}"
            )
        _stream(project, number, min(left, 600.0), tell)
        _check_running(project)
        with suppress(SilentError):
            found = status(project, number)
            if found.startswith("finished"):
                return found
        time.sleep(min(1.0, max(0.0, deadline - time.monotonic())))


def _stream(project: Project, number: str, seconds: float, tell: Tell) -> None:
    """Pass lines on until the SuperLink ends the stream, or dies, or the time is over."""
    environment = project.environment(OPERATOR)
    command = [program("flwr", environment), "log", number, CONNECTION]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**environment, "PYTHONUNBUFFERED": "1"},
    )
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    reader = threading.Thread(target=_read, args=(process, lines), daemon=True)
    reader.start()
    deadline = time.monotonic() + seconds
    looked = time.monotonic()
    try:
        while time.monotonic() < deadline:
            try:
                line = lines.get(timeout=1.0)
            except queue.Empty:
                line = ""
            if line is None:
                return
            if shown := _KIND.sub("", _COLOUR.sub("", line).rstrip() + " ").rstrip():
                tell(shown)
            if time.monotonic() - looked > _LOOK:
                looked = time.monotonic()
                if records.running(project, SUPERLINK) is None:
                    return
    finally:
        process.kill()
        process.wait()
        reader.join(timeout=5)


def _read(process: subprocess.Popen[str], lines: queue.SimpleQueue[str | None]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    lines.put(None)


def _check_running(project: Project) -> None:
    if records.running(project, SUPERLINK) is None:
        raise SecedeError(
            f"the SuperLink of {project.folder} does not run: secede flower up "
            f"{project.folder}, then the same command again"
        )


def _toml(value: str | int | float | bool) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str):
        return str(value)
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
