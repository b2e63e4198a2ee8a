"""Runs of the project's app on its SuperLink: start, follow, wait with a timeout, stop.

Flower does not resume a run that was cut short. The app does, in a new run of the same kind.
"""

from __future__ import annotations

import json
import logging
import queue
import re
import subprocess
import threading
import time
import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from secede import errors
from secede.errors import ConfigError, SecedeError, SilentError, StoppedError
from secede.flower.deploy import processes
from secede.flower.deploy.project import (
    CONNECTION,
    OPERATOR,
    SUPERLINK,
    TIMEOUT,
    Project,
    flwr,
    program,
)

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
    """Shows a run's lines, except for tracebacks of secede's errors, which become `error`."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self._show, self._held_back = show, list[str]()
        self.error: SecedeError | None = None  # the last one that the app raised

    def __call__(self, line: str) -> None:
        """Take the next line."""
        if self._held_back and _BETWEEN.match(line):
            self._held_back.append(line)
        elif self._held_back and (ours := _OURS.match(line)):
            self.error, self._held_back = _error(*ours.groups()), []
        elif self._held_back:
            self._held_back.append(line)
            self.end()
        elif _BEGIN.match(line):
            self._held_back, self.error = [line], None
        elif self.error is None or not _AFTER.match(line):
            self._show(line)

    def end(self) -> None:
        """Show the lines that were held back."""
        for line in self._held_back:
            self._show(line)
        self._held_back = []


def _error(name: str, text: str) -> SecedeError:
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, SecedeError):
        return kind(text)
    return SecedeError(text)


logger = logging.getLogger(__name__)
Show = Callable[[str], None]  # takes a line of the run's output
Config = Mapping[str, str | int | float | bool]  # overrides the app's own
COMPLETED = "finished:completed"
_CONFIG = "tool.flwr.app.config"
_KEYS = ("home", "leaver", "trigger", "options")  # of `erasure` in an app's config
_STATUS_INTERVAL = 10.0  # seconds between two checks that the SuperLink runs
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LEVEL = re.compile(r"^(DEBUG|INFO) *:\s*")  # of a log line; warnings and errors keep theirs


def run(project: Project, config: Config, *, timeout: float, show: Show) -> str:
    """Run the app with `config` to its end and return the run's number; raise if it fails.

    Ctrl-C stops the run at the SuperLink and raises StoppedError. An error of secede in the app is
    raised here.
    """
    output = RunOutput(show)
    try:
        number = start(project, config)
    except KeyboardInterrupt:
        raise StoppedError(
            "interrupted while a run was being started: `secede flower status "
            f"{project.folder}` shows whether it runs, `secede flower stop` ends it"
        ) from None
    try:
        logger.info(f"run {number} started; waiting at most {timeout:g} seconds for its end")
        status = follow(project, number, timeout=timeout, show=output)
    except KeyboardInterrupt:
        logger.info(f"interrupted: stopping run {number} at the SuperLink")
        raise StoppedError(_interrupted(project, number)) from None
    finally:
        output.end()
    if status != COMPLETED and output.error is not None:
        raise output.error
    if status != COMPLETED:
        raise SecedeError(
            f"run {number} ended as {status}: see above and {project.log(SUPERLINK)}; the same "
            "command goes on after the last completed round"
        )
    return number


def check_config(app: Path, wanted: Mapping[str, object]) -> None:
    """Raise if an app's config lacks a key that a run sets: Flower refuses unknown keys."""
    path = app / "pyproject.toml"
    try:
        table = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    for key in _CONFIG.split("."):
        table = table.get(key, {})
        if not isinstance(table, dict):
            raise ConfigError(f"{path}: {key} is {_type(table)}, expected a table [{_CONFIG}]")
    erasure = _erasure_table(path, table)
    flat = {**table, **{f"erasure.{key}": value for key, value in erasure.items()}}
    missing = [key for key in wanted if key not in flat]
    if not missing:
        return
    complete = {**dict.fromkeys(_KEYS, ""), "home": "home", **erasure}
    lines = [f"{key} = {_to_toml(wanted[key])}" for key in missing if "." not in key]
    lines += [f"erasure = {_to_toml(complete)}"] if any("." in key for key in missing) else []
    indented = "\n".join(f"    {line}" for line in lines)
    raise ConfigError(
        f"{path} has no {', '.join(missing)} under [{_CONFIG}], and Flower sets no key that an "
        f"app's config lacks. Write there, in place of what it has of them:\n{indented}\nand check "
        "that the server app has, in place of its own call of erase():\n"
        "    if erase_if_asked(grid, strategy, store, context):\n        return"
    )


def _erasure_table(path: Path, config: Mapping[str, object]) -> dict[str, object]:
    """Return the `erasure` table of an app's config; raise at a value that Flower cannot take."""
    table = config.get("erasure", {})
    if not isinstance(table, dict):
        return {}
    for key, value in table.items():
        if not isinstance(value, str | int | float | dict):
            raise ConfigError(
                f"{path}: erasure.{key} under [{_CONFIG}] is {_type(value)}, expected text, a "
                "number, true or false: write it in quotes"
            )
    return dict(table)


def _type(value: object) -> str:
    return f"of type {type(value).__name__}"


def _to_toml(value: object) -> str:
    """Return a value as TOML."""
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{key} = {_to_toml(each)}' for key, each in value.items())} }}"
    return repr(value) if isinstance(value, float) else json.dumps(value, default=str)


def start(project: Project, config: Config) -> str:
    """Start a run and return its number."""
    check_running(project)
    overrides = " ".join(f"{key}={_to_override(value)}" for key, value in config.items())
    override = ("--run-config", overrides) if overrides else ()
    return str(flwr(project, "run", str(project.app), *override)["run-id"])


def status(project: Project, number: str) -> str:
    """Return a run's status, such as running or finished:completed."""
    listed = flwr(project, "list", "--run-id", number)["runs"]
    return str(listed[0]["status"])


@dataclass(frozen=True)
class ActiveRun:
    """A run that has not finished."""

    run: str
    status: str  # pending, starting or running
    seconds: float  # for how long it has run


def active(project: Project, *, timeout: float = TIMEOUT) -> list[ActiveRun]:
    """Return the runs that have not finished."""
    listed = flwr(project, "list", timeout=timeout)["runs"]
    return [
        ActiveRun(str(row["run-id"]), str(row["status"]), float(row.get("elapsed") or 0.0))
        for row in listed
        if not str(row["status"]).startswith("finished")
    ]


def stop(project: Project, number: str) -> None:
    """Stop a run at the SuperLink; its app ends at its next call of the SuperLink."""
    flwr(project, "stop", number)


def _interrupted(project: Project, number: str) -> str:
    """Stop a run, and return what became of it as a sentence."""
    goes_on = "the same command goes on after the last completed step"
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


def follow(project: Project, number: str, *, timeout: float, show: Show) -> str:
    """Show a run's output until it has finished; return its status."""
    deadline = time.monotonic() + timeout
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            raise SilentError(
                f"run {number} has not finished within {timeout:g} seconds; it goes on: "
                f"flwr log {number} {CONNECTION}"
            )
        _stream(project, number, min(left, 600.0), show)
        check_running(project)
        with suppress(SilentError):
            current = status(project, number)
            if current.startswith("finished"):
                return current
        time.sleep(min(1.0, max(0.0, deadline - time.monotonic())))


def _stream(project: Project, number: str, timeout: float, show: Show) -> None:
    """Show a run's lines until the SuperLink ends the stream, or dies, or the time is over."""
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
    deadline = time.monotonic() + timeout
    checked = time.monotonic()
    try:
        while time.monotonic() < deadline:
            try:
                line = lines.get(timeout=1.0)
            except queue.Empty:
                line = ""
            if line is None:
                return
            if shown := _LEVEL.sub("", _COLOUR.sub("", line).rstrip() + " ").rstrip():
                show(shown)
            if time.monotonic() - checked > _STATUS_INTERVAL:
                checked = time.monotonic()
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


def _to_override(value: str | int | float | bool) -> str:
    """Return a value as TOML that `flwr run --run-config` takes."""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str):
        return str(value)
    # To Flower a value ends at its first quotation mark, escaped or not.
    escaped = value.replace("\\", "\\\\").replace('"', "\\u0022").replace("\n", "\\n")
    return f'"{escaped}"'
