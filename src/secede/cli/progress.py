"""Progress of runs: bars on a terminal, log lines elsewhere.

Seeds that run at once report from threads of their own.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from secede import logs
from secede.experiments import Config

logger = logging.getLogger(__name__)

_ARMS = {
    "fedavg": "training with everybody",
    "retrain": "retraining without the leaver",
    "retrain-again": "retraining once more, for the null",
}

QUIET_SECONDS = 10.0


def _activity(arm: str) -> str:
    return _ARMS.get(arm) or f"erasing by {arm}"


class _Bars:
    """One bar per running seed, over all rounds of all arms; of several, one more over all."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._start = bars.add_task("starting", total=None, now="loading data")
        self._overall: TaskID | None = None

    def expect(self, seeds: int, lanes: int) -> None:
        if seeds > 1:
            self._overall = self._bars.add_task("all seeds", total=seeds, now="")

    def begin(self, config: Config, seed: int, rounds: int) -> _Bar:
        self._bars.update(self._start, visible=False)
        return _Bar(self._bars, _name(config, seed), rounds, self._overall)

    def reused(self, config: Config, seed: int) -> None:
        self._bars.console.print(_reused(config, seed))
        if self._overall is not None:
            self._bars.advance(self._overall)


class _Bar:
    """The bar of a running seed."""

    def __init__(self, bars: Progress, name: str, rounds: int, overall: TaskID | None) -> None:
        self._bars, self._overall = bars, overall
        self._task = bars.add_task(name, total=rounds, now="")

    def round(self, arm: str, number: int, row: dict[str, dict[str, float]]) -> None:
        self._bars.update(self._task, advance=1, now=f"{_activity(arm)}{_brief(row)}")

    def end(self) -> None:
        if self._overall is not None:
            self._bars.update(self._task, visible=False)
            self._bars.advance(self._overall)


class _Lines:
    """Plain lines; they name their seed where several run at once."""

    def __init__(self) -> None:
        self._lanes = 1

    def expect(self, seeds: int, lanes: int) -> None:
        self._lanes = lanes

    def begin(self, config: Config, seed: int, rounds: int) -> _SeedLines:
        name = _name(config, seed)
        logger.info(f"{name}: {rounds} rounds in all")
        return _SeedLines("  " if self._lanes == 1 else f"{name}: ")

    def reused(self, config: Config, seed: int) -> None:
        logger.info(_reused(config, seed))


class _SeedLines:
    """One line per arm, every fifth round and every ten seconds."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._logged = time.monotonic()

    def round(self, arm: str, number: int, row: dict[str, dict[str, float]]) -> None:
        due = time.monotonic() - self._logged > QUIET_SECONDS
        if row and (due or number == 1 or number % 5 == 0):
            self._logged = time.monotonic()
            logger.info(f"{self._prefix}{_activity(arm)}, round {number}{_brief(row)}")

    def end(self) -> None:
        pass


def counted_bars(console: Console) -> Progress:
    """Return bars with counts, the time left, and what is done `now`."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[now]}"),
        console=console,
    )


@contextmanager
def progress() -> Iterator[_Bars | _Lines]:
    """Give the reporter that fits where standard error goes."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines()
        return
    with counted_bars(console) as bars:
        yield _Bars(bars)


@contextmanager
def drawing() -> Iterator[Callable[[int, int], None]]:
    """Give a counter for figures: a bar on a terminal, nothing elsewhere."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bars:
        task = bars.add_task("drawing figures", total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


class _LastLine(logging.Handler):
    """Remembers the last line that was logged, and when."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.line, self.time, self.patience = "", time.monotonic(), QUIET_SECONDS

    def emit(self, record: logging.LogRecord) -> None:
        """Take a line, unless it is a repetition."""
        if record.name != logger.name:
            self.line, self.time = self.format(record), time.monotonic()
            self.patience = QUIET_SECONDS

    def repeat_when_quiet(self) -> None:
        """Log the last line again if none followed for long enough."""
        quiet = time.monotonic() - self.time
        if self.line and quiet >= self.patience:
            self.patience *= 2
            logger.info(f"still running after {quiet:.0f} s: {self.line.splitlines()[-1]}")


@contextmanager
def repeating_when_quiet() -> Iterator[None]:
    """Log the last line again while nothing follows: after ten seconds, twenty, forty."""
    handler, ended = _LastLine(), threading.Event()

    def watch() -> None:
        while not ended.wait(QUIET_SECONDS / 4):
            handler.repeat_when_quiet()

    thread = threading.Thread(target=watch, daemon=True)
    logs.add(handler)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        logs.LOGGER.removeHandler(handler)


def _brief(row: dict[str, dict[str, float]]) -> str:
    shown = [
        f"{name.replace('_', ' ')} {100 * row[name]['value']:.1f} %"
        for name in (
            "clean_accuracy",
            "attack_success",
            "flipped_accuracy",
            "exclusive_accuracy",
            "class_accuracy",
        )
        if name in row
    ]
    return ": " + ", ".join(shown) if shown else ""


def _name(config: Config, seed: int) -> str:
    return f"{config.name}, seed {seed}"


def _reused(config: Config, seed: int) -> str:
    return f"{_name(config, seed)}: finished already, not computed again"
