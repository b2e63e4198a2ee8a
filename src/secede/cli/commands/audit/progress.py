"""Progress of an audit: a bar for each federation in work on a terminal, log lines elsewhere."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    Progress,
    TaskID,
)

from secede.cli.progress import counted_bars
from secede.errors import StoppedError
from secede.text import plural

logger = logging.getLogger(__name__)


def _announced(federations: int, finished: int, lanes: int) -> str:
    had = f", {finished} finished already and kept" if finished else ""
    return f"{plural(federations, 'federation')}{had}; {lanes} at once"


class _Bars:
    """One bar per federation in work, and one over all."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._overall = bars.add_task("all federations", total=None, now="loading data")

    def expect(self, federations: int, finished: int, lanes: int) -> None:
        self._bars.update(self._overall, total=federations, completed=finished, now="")

    def begin(self, number: int, rounds: int) -> _Bar:
        return _Bar(self._bars, number, rounds, self._overall)


class _Bar:
    """The bar of a federation in work."""

    def __init__(self, bars: Progress, number: int, rounds: int, overall: TaskID) -> None:
        self._bars, self._overall = bars, overall
        self._task = bars.add_task(f"federation {number}", total=rounds, now="")

    def round(self, phase: str) -> None:
        self._bars.update(self._task, advance=1, now=phase)

    def end(self, seconds: float) -> None:
        self._bars.remove_task(self._task)
        self._bars.advance(self._overall)


class _Lines:
    """A line for each federation that is finished."""

    def __init__(self) -> None:
        self._federations = 0

    def expect(self, federations: int, finished: int, lanes: int) -> None:
        self._federations = federations
        logger.info(_announced(federations, finished, lanes))

    def begin(self, number: int, rounds: int) -> _FederationLines:
        return _FederationLines(f"federation {number + 1} of {self._federations}")


class _FederationLines:
    """The line of one federation."""

    def __init__(self, name: str) -> None:
        self._name = name

    def round(self, phase: str) -> None:
        pass

    def end(self, seconds: float) -> None:
        logger.info(f"{self._name}: finished after {seconds:.1f} s")


@contextmanager
def audit_progress() -> Iterator[_Bars | _Lines]:
    """Give the reporter that fits where standard error goes."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _Lines()
        return
    with counted_bars(console) as bars:
        yield _Bars(bars)


@contextmanager
def stopping(how_on: str) -> Iterator[None]:
    """Say in one line how an interrupted command goes on."""
    try:
        yield
    except KeyboardInterrupt:
        # A second Ctrl-C would only cut short the threads that finish their round.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise StoppedError(f"interrupted; {how_on}") from None
