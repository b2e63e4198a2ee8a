"""Runs of the project's app on its SuperLink: started, followed, waited for with an end.

Flower does not go on with a run that was cut short; the app does, in a new run of the same kind.
"""

from __future__ import annotations

import logging
import queue
import re
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from secede import errors
from secede.errors import SecedeError, SilentError, StoppedError
from secede.flower.deploy import flwr_cli, processes
from secede.flower.deploy.project import CONNECTION, OPERATOR, SUPERLINK, Project, program

_BEGIN = re.compile(r"^(ERROR *: *)?(ServerApp raised an exception|Traceback \(most recent)")
_BETWEEN = re.compile(
    r"^(\s|$|Traceback \(|The above exception was|During handling of the above|ERROR *: *ServerApp)"
)
_OURS = re.compile(r"^secede(?:\.\w+)*\.(\w+): (.*)$")
_AFTER = re.compile(
    r"^(ERROR *: *)?(Exit Code: 201|An unhandled exception occurred in the ServerApp|"
    r"For more information, visit: <https://flower)"
)


class RunOutput:
    """Passes lines on, and holds a traceback back until it is known whose it is."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show, self._held = show, list[str]()
        self.error: SecedeError | None = None  # that the app ended with

    def __call__(self, line: str) -> None:
        """Take a line."""
        if self._held and _BETWEEN.match(line):
            self._held.append(line)
        elif self._held and (found := _OURS.match(line)):
            self.error, self._held = _error(*found.groups()), []
        elif self._held:
            self._held.append(line)
            self.end()
        elif _BEGIN.match(line):
            self._held, self.error = [line], None
        elif self.error is None or not _AFTER.match(line):
            self._show(line)

    def end(self) -> None:
        """Show what was held back."""
        for line in self._held:
            self._show(line)
        self._held = []


def _error(name: str, text: str) -> SecedeError:
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, SecedeError):
        return kind(text)
    return SecedeError(text)


logger = logging.getLogger(__name__)
Show = Callable[[str], None]  # a line of the run's own output
Config = Mapping[str, str | int | float | bool]  # that changes the app's own
COMPLETED = "finished:completed"
_LOOK = 10.0  # seconds between two looks at a run's status
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_KIND = re.compile(r"^(DEBUG|INFO) *:\s*")  # of a log line; warnings and errors show theirs


def run(project: Project, config: Config, *, seconds: float, show: Show) -> str:
    """Run the app with `config` to its end and return the run's number; raise if it fails.

    Ctrl-C stops it at the SuperLink, too: StoppedError. An error of ours in the app is raised here.
    """
    said = RunOutput(show)
    try:
        number = start(project, config)
    except KeyboardInterrupt:
        raise StoppedError(
            "interrupted while a run was being started: `secede flower status "
            f"{project.folder}` shows whether it runs, `secede flower stop` ends it"
        ) from None
    try:
        logger.info(f"run {number} started; waiting at most {seconds:g} seconds for its end")
        status = follow(project, number, seconds=seconds, show=said)
    except KeyboardInterrupt:
        logger.info(f"interrupted: stopping run {number} at the SuperLink")
        raise StoppedError(_interrupted(project, number)) from None
    finally:
        said.end()
    if status != COMPLETED and said.error is not None:
        raise said.error
    if status != COMPLETED:
        raise SecedeError(
            f"run {number} ended as {status}: see above and {project.log(SUPERLINK)}; the same "
            "command goes on after the last round that was completed"
        )
    return number


def start(project: Project, config: Config) -> str:
    """Start a run and return its number."""
    check_running(project)
    told = " ".join(f"{key}={_toml(value)}" for key, value in config.items())
    override = ("--run-config", told) if told else ()
    return str(flwr_cli.flwr(project, "run", str(project.app), *override)["run-id"])


def status(project: Project, number: str) -> str:
    """Return how a run stands, such as running or finished:completed."""
    found = flwr_cli.flwr(project, "list", "--run-id", number)["runs"]
    return str(found[0]["status"])


@dataclass(frozen=True)
class ActiveRun:
    """A run that has not ended."""

    run: str
    status: str  # pending, starting or running
    seconds: float  # that it has run


def active(project: Project, *, seconds: float = flwr_cli.SECONDS) -> list[ActiveRun]:
    """Return the runs that have not ended."""
    found = flwr_cli.flwr(project, "list", seconds=seconds)["runs"]
    return [
        ActiveRun(str(one["run-id"]), str(one["status"]), float(one.get("elapsed") or 0.0))
        for one in found
        if not str(one["status"]).startswith("finished")
    ]


def stop(project: Project, number: str) -> None:
    """Stop a run at the SuperLink; its app ends when it next asks the SuperLink for something."""
    flwr_cli.flwr(project, "stop", number)


def _interrupted(project: Project, number: str) -> str:
    """Stop a run, and say what came of that."""
    goes_on = "the same command goes on after the last step that was completed"
    try:
        stop(project, number)
        return f"run {number} is stopped; {goes_on}"
    except KeyboardInterrupt:
        return f"run {number} may still run: secede flower stop {project.folder}"
    except SecedeError as error:
        with suppress(SecedeError):
            if (ended := status(project, number)).startswith("finished"):
                return f"run {number} had ended already as {ended}; {goes_on}"
        return (
            f"run {number} could not be stopped and goes on ({error}): "
            f"secede flower stop {project.folder}"
        )


def follow(project: Project, number: str, *, seconds: float, show: Show) -> str:
    """Pass on what a run prints, until it has finished; return its status."""
    deadline = time.monotonic() + seconds
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            raise SilentError(
                f"run {number} has not finished within {seconds:g} seconds; it goes on: "
                f"flwr log {number} {CONNECTION}"
            )
        _stream(project, number, min(left, 600.0), show)
        check_running(project)
        with suppress(SilentError):
            found = status(project, number)
            if found.startswith("finished"):
                return found
        time.sleep(min(1.0, max(0.0, deadline - time.monotonic())))


def _stream(project: Project, number: str, seconds: float, show: Show) -> None:
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
                show(shown)
            if time.monotonic() - looked > _LOOK:
                looked = time.monotonic()
                if processes.running(project, SUPERLINK) is None:
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


def check_running(project: Project) -> None:
    """Raise if the SuperLink does not run."""
    if processes.running(project, SUPERLINK) is None:
        raise SecedeError(
            f"the SuperLink of {project.folder} does not run: secede flower up "
            f"{project.folder}, then the same command again"
        )


def _toml(value: str | int | float | bool) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str):
        return str(value)
    # Flower takes a value to end at its first quotation mark, escaped or not.
    escaped = value.replace("\\", "\\\\").replace('"', "\\u0022").replace("\n", "\\n")
    return f'"{escaped}"'
