"""How runs go: bars on a terminal, plain lines elsewhere, always on standard error.

Seeds that run side by side report from threads of their own.
"""

from __future__ import annotations

import sys
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
from secede.experiments.config import Config

_ARMS = {
    "fedavg": "training with everybody",
    "retrain": "retraining without the leaver",
}

QUIET_SECONDS = 10.0


def _doing(arm: str) -> str:
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
    """A running seed's."""

    def __init__(self, bars: Progress, name: str, rounds: int, overall: TaskID | None) -> None:
        self._bars, self._overall = bars, overall
        self._task = bars.add_task(name, total=rounds, now="")

    def round(self, arm: str, number: int, row: dict[str, dict[str, float]]) -> None:
        self._bars.update(self._task, advance=1, now=f"{_doing(arm)}{_brief(row)}")

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
        _say(f"{name}: {rounds} rounds in all")
        return _SeedLines("  " if self._lanes == 1 else f"{name}: ")

    def reused(self, config: Config, seed: int) -> None:
        _say(_reused(config, seed))


class _SeedLines:
    """One line per arm, every fifth round and every ten seconds."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._said = time.monotonic()

    def round(self, arm: str, number: int, row: dict[str, dict[str, float]]) -> None:
        due = time.monotonic() - self._said > QUIET_SECONDS
        if row and (due or number == 1 or number % 5 == 0):
            self._said = time.monotonic()
            _say(f"{self._prefix}{_doing(arm)}, round {number}{_brief(row)}")

    def end(self) -> None:
        pass


@contextmanager
def progress() -> Iterator[_Bars | _Lines]:
    """Give the reporter that fits where standard error goes."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines()
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[now]}"),
    )
    with Progress(*columns, console=console) as bars:
        yield _Bars(bars)


@contextmanager
def drawing() -> Iterator[Callable[[int, int], None]]:
    """Give a counter for figures: a bar on a terminal, nothing elsewhere."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bars:
        task = bars.add_task("drawing figures", total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


@contextmanager
def repeating_when_quiet(say: Callable[[str], None]) -> Iterator[None]:
    """Say again what was logged last while nothing follows.

    That comes ever more rarely: after ten seconds, twenty, forty.
    """
    ended, last, since, patience = threading.Event(), "", time.monotonic(), QUIET_SECONDS

    def note(line: str) -> None:
        nonlocal last, since, patience
        last, since, patience = line, time.monotonic(), QUIET_SECONDS

    def go_on() -> None:
        nonlocal patience
        while not ended.wait(QUIET_SECONDS / 4):
            quiet = time.monotonic() - since
            if last and quiet >= patience:
                patience *= 2
                say(f"still at it after {quiet:.0f} s: {last.splitlines()[-1]}")

    beside = threading.Thread(target=go_on, daemon=True)
    beside.start()
    try:
        with logs.passed_to(note):
            yield
    finally:
        ended.set()
        beside.join()


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
    return f"{_name(config, seed)}: found finished, not computed again"


def _say(line: str) -> None:
    # In one piece: print() would write the line's end on its own, after another thread's line.
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
