"""How a run goes: a bar on a terminal, plain lines elsewhere, always on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from secede.experiments.config import Config

_ARMS = {
    "fedavg": "training with everybody",
    "retrain": "retraining without the leaver",
    "fine-tune": "fine-tuning alone",
    "reference": "reference alone",
    "projected-ascent": "erasing by projected ascent",
}


QUIET_SECONDS = 10.0


class _Bar:
    """One bar per seed, over all rounds of all arms."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._task = bars.add_task("starting", total=None, now="loading data")

    def begin(self, config: Config, seed: int, rounds: int) -> None:
        self._bars.update(self._task, visible=False)
        self._task = self._bars.add_task(f"{config.name}, seed {seed}", total=rounds, now="")

    def round(self, arm: str, number: int, row: dict[str, dict[str, float]]) -> None:
        self._bars.update(self._task, advance=1, now=f"{_ARMS[arm]}{_brief(row)}")

    def reused(self, config: Config, seed: int) -> None:
        self._bars.console.print(f"{config.name}, seed {seed}: found finished, not computed again")


class _Lines:
    """One line per arm, every fifth round and every ten seconds."""

    def __init__(self) -> None:
        self._said = time.monotonic()

    def begin(self, config: Config, seed: int, rounds: int) -> None:
        _say(f"{config.name}, seed {seed}: {rounds} rounds in all")

    def round(self, arm: str, number: int, row: dict[str, dict[str, float]]) -> None:
        due = time.monotonic() - self._said > QUIET_SECONDS
        if row and (due or number == 1 or number % 5 == 0):
            self._said = time.monotonic()
            _say(f"  {_ARMS[arm]}, round {number}{_brief(row)}")

    def reused(self, config: Config, seed: int) -> None:
        _say(f"{config.name}, seed {seed}: found finished, not computed again")


@contextmanager
def progress() -> Iterator[_Bar | _Lines]:
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
        yield _Bar(bars)


@contextmanager
def drawing() -> Iterator[Callable[[int, int], None]]:
    """Give a counter for figures: a bar on a terminal, nothing elsewhere."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bars:
        task = bars.add_task("drawing figures", total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


def _brief(row: dict[str, dict[str, float]]) -> str:
    shown = [
        f"{name.replace('_', ' ')} {100 * row[name]['value']:.1f} %"
        for name in ("clean_accuracy", "attack_success", "flipped_accuracy")
        if name in row
    ]
    return ": " + ", ".join(shown) if shown else ""


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
