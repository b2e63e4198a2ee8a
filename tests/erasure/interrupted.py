"""Erases in forked processes, kills them, lets others go on, and compares with one left in peace.

    python -m erasure.interrupted FOLDER random KIND COUNT   killed COUNT times, at random
    python -m erasure.interrupted FOLDER writes KIND STEP    killed at every STEP-th write

A kill at a write comes before it, after it, or in the middle of it with half the bytes written.
Prints what was counted, as JSON; whatever is lost, doubled or different fails.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sqlite3
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from erasure import small
from erasure.small import Hostile
from secede import state as states
from secede.erasure import workflow
from secede.erasure.home import Home
from secede.erasure.ledger import Ledger
from secede.erasure.plan import Margins
from secede.experiments.simulated import Simulated

# Wide, so that two rounds are enough; what is tested is the way, not the model.
WISHES = small.wishes(rounds=2, server_rounds=2, margins=Margins(overall=0.9, of_class=0.99))
WRITING = ("BEGIN", "INSERT", "UPDATE", "DELETE", "COMMIT")


def honest(home: Home) -> None:
    small.erase(home, 1, how=WISHES)


def lazy(home: Home) -> None:
    """The leaver returns the model as it got it: refused, then the next rung."""
    ground = Hostile(home, leaver=None)
    ground.leaver_sends = lambda _: (
        ground.server("site-0", ["site-1"], _model(home), 1).global_state
    )
    small.erase(home, 1, ground=ground, how=WISHES)


def hopeless(home: Home) -> None:
    """No rung gets a round: the gate fails on each of them, and the old model stays."""
    ground = Simulated(home)
    ground.training_rounds = 0
    small.erase(home, 1, ground=ground, how=small.wishes(rounds=0, server_rounds=0))


def _model(home: Home) -> dict[str, torch.Tensor]:
    return states.load(home.model(small.serving(home)))[0]


WORK: dict[str, Callable[[Home], None]] = {"honest": honest, "lazy": lazy, "hopeless": hopeless}
ENDS = {"honest": "promoted", "lazy": "promoted", "hopeless": "rolled-back"}


class Deadly:
    """Counts writes and kills its own process at one of them; at 0 it only counts."""

    def __init__(self, at: int) -> None:
        self.at, self.count = at, 0

    def pass_by(self) -> bool:
        self.count += 1
        return self.count == self.at

    def step(self) -> None:
        if self.pass_by():
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, genuine: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **more: Any) -> Any:
            self.step()
            done = genuine(*args, **more)
            self.step()
            return done

        return wrapped

    def install(self) -> None:
        for name in ("replace", "fsync", "unlink", "link", "rmdir"):
            setattr(os, name, self.around(getattr(os, name)))
        write, connect = Path.write_bytes, sqlite3.connect

        def half(path: Path, content: bytes) -> int:
            if self.pass_by():
                write(path, content[: len(content) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return write(path, content)

        def traced(*args: Any, **more: Any) -> sqlite3.Connection:
            connection: sqlite3.Connection = connect(*args, **more)
            connection.set_trace_callback(
                lambda statement: self.step() if statement.startswith(WRITING) else None
            )
            return connection

        Path.write_bytes = half  # type: ignore[method-assign, assignment]
        sqlite3.connect = traced  # type: ignore[assignment]


def fork(work: Callable[[], None]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
        os._exit(0)
    except BaseException as error:
        os.write(2, f"{error!r}\n".encode())
        os._exit(1)


def ended(pid: int) -> bool:
    """Wait; return whether it came to its end. It may be killed, but must not fail."""
    _, status = os.waitpid(pid, 0)
    assert status in (0, signal.SIGKILL), f"the erasure failed: {status}"
    return status == 0


def check_prefix(home: Home, peaceful: dict[str, Any]) -> int:
    """Fail unless the way so far is the beginning of the undisturbed one; return its length."""
    way = small.way(home)
    assert way == peaceful["way"][: len(way)], way
    with Ledger(home.ledger, read_only=True) as ledger:
        ledger.verify()
    return len(way)


def compare(found: dict[str, Any], peaceful: dict[str, Any], words: str) -> None:
    for key, value in peaceful.items():
        assert found[key] == value, f"{words}: {key} is {found[key]}, not {value}"


def at_every_write(template: Home, folder: Path, kind: str, step: int) -> dict[str, int]:
    work, peaceful = WORK[kind], in_peace(template, folder, kind)
    kills = resumed = 0
    at = 1
    while True:
        home = small.copy(template, folder / f"{kind}-{at}")

        def doomed(home: Home = home, at: int = at) -> None:
            Deadly(at).install()
            work(home)

        done = ended(fork(doomed))
        if not done:
            kills += 1
            check_prefix(home, peaceful)
            assert ended(fork(lambda home=home: work(home)))  # type: ignore[misc]
            resumed += 1
        compare(small.timeless(home), peaceful, f"killed at write {at}")
        shutil.rmtree(home.path)
        if done:
            return {"kills": kills, "resumed": resumed, "writes": at - 1}
        at += step


def at_random_times(template: Home, folder: Path, kind: str, count: int) -> dict[str, int]:
    work, peaceful = WORK[kind], in_peace(template, folder, kind)
    started = time.monotonic()
    assert ended(fork(lambda: work(small.copy(template, folder / f"{kind}-timed"))))
    lasts = time.monotonic() - started
    dice, kills, erasures, most = random.Random(11), 0, 0, 0
    while kills < count:
        home = small.copy(template, folder / f"{kind}-{erasures}")
        here = 0
        while True:
            pid = fork(lambda home=home: work(home))  # type: ignore[misc]
            time.sleep(dice.random() * 0.6 * lasts)
            os.kill(pid, signal.SIGKILL)
            if ended(pid):
                break
            check_prefix(home, peaceful)
            here += 1
            if kills + here >= count:  # enough: let it end
                assert ended(fork(lambda home=home: work(home)))  # type: ignore[misc]
                break
        compare(small.timeless(home), peaceful, f"after {here} kills")
        kills, erasures, most = kills + here, erasures + 1, max(most, here)
        shutil.rmtree(home.path)
    return {"kills": kills, "erasures": erasures, "most_kills_of_one": most}


def in_peace(template: Home, folder: Path, kind: str) -> dict[str, Any]:
    home = small.copy(template, folder / f"{kind}-undisturbed")
    assert ended(fork(lambda: WORK[kind](home)))
    found = small.timeless(home)
    assert found["way"][-1] == ENDS[kind]
    assert ("escalated" in found["way"]) == (kind != "honest")
    return found


def prepare(folder: Path) -> Home:
    """Return a home with one request received, and everything heavy imported and used once."""
    torch.set_num_threads(1)
    template = small.make(folder)
    workflow.receive(template, small.ask(template), small.NOW)
    small.erase(small.copy(template, folder / "warm"), 1, how=WISHES)
    Simulated(template)
    return template


def main(folder: Path, how: str, kind: str, count: str) -> None:
    template = prepare(folder)
    run = {"random": at_random_times, "writes": at_every_write}[how]
    started = time.monotonic()
    found = run(template, folder, kind, int(count))
    print(json.dumps({**found, "seconds": round(time.monotonic() - started, 1)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4])
