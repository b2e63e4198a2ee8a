"""Erases in forked processes, kills them, lets others go on, and compares with one left in peace.

    python -m erasure.interrupted FOLDER random KIND COUNT   killed COUNT times, at random
    python -m erasure.interrupted FOLDER writes KIND STEP    killed at every STEP-th write
    python -m erasure.interrupted FOLDER kinds KIND -        killed at each kind of write once, and
                                                             at every transition; with another
                                                             KIND for -, without the writes of that
    python -m erasure.interrupted FOLDER                     reads such lines: random honest 6

A kill at a write comes before it, after it, or in the middle of it with half the bytes written.
Prints what was counted, as JSON; whatever is lost, doubled or different fails. A kill leaves what
was written, on its way to the disk or not: a FOLDER in memory shows the same as one on a disk.
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
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from harness.erasure import small
from harness.erasure.small import Hostile
from secede import state as states
from secede.erasure.documents.plan import Margins
from secede.erasure.storage.home import Home
from secede.erasure.storage.ledger import Ledger
from secede.erasure.workflow import erase
from secede.simulation.backend import SimulatedBackend

# Wide, so that two rounds are enough; what is tested is the way, not the model.
OPTIONS = small.options(
    max_rounds=2, max_server_rounds=2, margins=Margins(overall=0.9, per_class=0.99)
)
WRITING = ("BEGIN", "INSERT", "UPDATE", "DELETE", "COMMIT")


def honest(home: Home) -> None:
    small.erase(home, 1, how=OPTIONS)


def lazy(home: Home) -> None:
    """The leaver returns the model as it got it: refused, then the next rung."""
    ground = Hostile(home, leaver=None)
    ground.leaver_sends = lambda _: (
        ground.server("site-0", ["site-1"], _model(home), 1).global_state
    )
    small.erase(home, 1, ground=ground, how=OPTIONS)


def hopeless(home: Home) -> None:
    """The gate fails on each rung, and retraining for want of updates: the old model stays."""
    ground = Hostile(home, retained=small.broken, malicious=3)
    small.erase(home, 1, ground=ground, how=small.options(max_rounds=0, max_server_rounds=0))


def accepted(home: Home) -> None:
    """No rung gets a round, and what that loses is accepted."""
    ground = SimulatedBackend(home)
    ground.training_rounds = 0
    how = small.options(max_rounds=0, max_server_rounds=0, accept_loss="objection upheld")
    small.erase(home, 1, ground=ground, how=how)


def _model(home: Home) -> dict[str, torch.Tensor]:
    return states.load(home.model_path(small.serving(home)))[0]


WORK: dict[str, Callable[[Home], None]] = {
    "honest": honest,
    "lazy": lazy,
    "hopeless": hopeless,
    "accepted": accepted,
}
ENDS = dict.fromkeys(WORK, "promoted") | {"hopeless": "rolled-back"}


class Deadly:
    """Counts writes and kills its own process at one of them; at 0 it only counts."""

    def __init__(self, at: int) -> None:
        self.at, self.kinds, self._moves, self._moved = at, list[str](), 0, False

    def pass_by(self, kind: str) -> bool:
        if kind.startswith("INSERT INTO transitions"):
            self._moves, self._moved = self._moves + 1, True
            kind += f" {self._moves}"
        elif kind.startswith("COMMIT") and self._moved:
            self._moved = False
            kind += f" {self._moves}"
        self.kinds.append(kind)
        return len(self.kinds) == self.at

    def step(self, kind: str) -> None:
        if self.pass_by(kind):
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, name: str, genuine: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **more: Any) -> Any:
            kind = f"{name} {Path(str(args[-1])).suffix}"
            self.step(f"before {kind}")
            done = genuine(*args, **more)
            self.step(f"after {kind}")
            return done

        return wrapped

    def install(self) -> None:
        for name in ("replace", "fsync", "unlink", "link", "rmdir"):
            setattr(os, name, self.around(name, getattr(os, name)))
        write, connect = Path.write_bytes, sqlite3.connect

        def half(path: Path, content: bytes) -> int:
            if self.pass_by(f"half {''.join(path.suffixes[-3:-2])}"):
                write(path, content[: len(content) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return write(path, content)

        def traced(*args: Any, **more: Any) -> sqlite3.Connection:
            connection: sqlite3.Connection = connect(*args, **more)
            file = Path(str(args[0]).partition("?")[0]).stem

            def trace(statement: str) -> None:
                if statement.startswith(WRITING):
                    self.step(f"{' '.join(statement.split()[:3])} {file}")

            connection.set_trace_callback(trace)
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


def in_lanes(folder: Path, work: Callable[[int, int], object]) -> list[Any]:
    """Do `work` once for each lane of as many as there are cores, side by side; return results."""
    lanes = min(os.cpu_count() or 1, 8)

    def told(lane: int) -> None:
        (folder / f"lane-{lane}.json").write_text(json.dumps(work(lane, lanes)))

    pids = [fork(lambda lane=lane: told(lane)) for lane in range(lanes)]  # type: ignore[misc]
    done = [ended(pid) for pid in pids]
    assert all(done)
    return [json.loads((folder / f"lane-{lane}.json").read_text()) for lane in range(lanes)]


def at_every_write(template: Home, folder: Path, kind: str, step: str) -> dict[str, int]:
    kinds = kinds_of_writes(template, folder, kind)
    places = range(1, len(kinds) + 1, int(step))
    return {**at_writes(template, folder, kind, places), "writes": len(kinds)}


def at_each_kind_of_write(template: Home, folder: Path, kind: str, beyond: str) -> dict[str, int]:
    kinds = kinds_of_writes(template, folder, kind)
    known = set() if beyond == "-" else {*kinds_of_writes(template, folder, beyond)}
    first = {
        name: place
        for place, name in reversed(list(enumerate(kinds, start=1)))
        if name not in known or name[-1].isdigit()  # a transition
    }
    found = at_writes(template, folder, kind, sorted(first.values()))
    return {**found, "writes": len(kinds), "kinds": len(first)}


def kinds_of_writes(template: Home, folder: Path, kind: str) -> list[str]:
    """Return what kind of write each write of an undisturbed erasure is, in order."""
    home, listed = small.copy(template, folder / f"{kind}-counted"), folder / f"{kind}.kinds"

    def counted() -> None:
        deadly = Deadly(0)
        deadly.install()
        WORK[kind](home)
        listed.write_text(json.dumps(deadly.kinds))

    assert ended(fork(counted))
    shutil.rmtree(home.path)
    found: list[str] = json.loads(listed.read_text())
    return found


def at_writes(template: Home, folder: Path, kind: str, places: Sequence[int]) -> dict[str, int]:
    work, peaceful = WORK[kind], in_peace(template, folder, kind)

    def killed_at(places: Iterable[int]) -> int:
        kills = 0
        for at in places:
            home = small.copy(template, folder / f"{kind}-{at}")

            def doomed(home: Home = home, at: int = at) -> None:
                Deadly(at).install()
                work(home)

            assert not ended(fork(doomed)), f"there was no write {at}"
            check_prefix(home, peaceful)
            assert ended(fork(lambda home=home: work(home)))  # type: ignore[misc]
            compare(small.timeless(home), peaceful, f"killed at write {at}")
            shutil.rmtree(home.path)
            kills += 1
        return kills

    kills = sum(in_lanes(folder, lambda lane, lanes: killed_at(places[lane::lanes])))
    return {"kills": kills, "transitions": len(peaceful["way"]) - 1}  # it was received before


def at_random_times(template: Home, folder: Path, kind: str, count: str) -> dict[str, int]:
    peaceful = in_peace(template, folder, kind)
    started = time.monotonic()
    timed = small.copy(template, folder / f"{kind}-timed")
    assert ended(fork(lambda: WORK[kind](timed)))
    lasts = time.monotonic() - started
    shutil.rmtree(timed.path)

    def lane_of(lane: int, lanes: int) -> list[int]:
        own = len(range(int(count))[lane::lanes])
        return _killed_often(template, folder / f"{kind}-{lane}", kind, peaceful, own, lane, lasts)

    here = [kills for lane in in_lanes(folder, lane_of) for kills in lane]
    return {"kills": sum(here), "erasures": len(here), "most_kills_of_one": max(here)}


def _killed_often(
    template: Home,
    path: Path,
    kind: str,
    peaceful: dict[str, Any],
    count: int,
    seed: int,
    lasts: float,
) -> list[int]:
    """Kill erasures `count` times in all, at random; return how often each one was killed."""
    work, dice, found = WORK[kind], random.Random(11 + seed), list[int]()
    while sum(found) < count:
        home, here = small.copy(template, path), 0
        while True:
            pid = fork(lambda home=home: work(home))  # type: ignore[misc]
            time.sleep(dice.random() * 0.6 * lasts)
            os.kill(pid, signal.SIGKILL)
            if ended(pid):
                break
            check_prefix(home, peaceful)
            here += 1
            if sum(found) + here >= count:  # enough: let it end
                assert ended(fork(lambda home=home: work(home)))  # type: ignore[misc]
                break
        compare(small.timeless(home), peaceful, f"after {here} kills")
        found.append(here)
        shutil.rmtree(home.path)
    return found


def in_peace(template: Home, folder: Path, kind: str) -> dict[str, Any]:
    home = small.copy(template, folder / f"{kind}-undisturbed")
    assert ended(fork(lambda: WORK[kind](home)))
    found = small.timeless(home)
    faded = [done.unused_weights for done in small.course(home).rounds]
    shutil.rmtree(home.path)
    assert found["way"][-1] == ENDS[kind]
    assert kind != "honest" or any(one.removed_share for one in faded if one)
    assert ("escalated" in found["way"]) == (kind != "honest")
    return found


def prepare(folder: Path) -> Home:
    """Return a home with one request received, and everything heavy imported and used once."""
    torch.set_num_threads(1)
    template = small.make(folder, small.DEEP)
    erase.receive(template, small.ask(template), small.NOW)
    small.erase(small.copy(template, folder / "warm"), 1, how=OPTIONS)
    SimulatedBackend(template)
    return template


HOW: dict[str, Callable[[Home, Path, str, str], dict[str, int]]] = {
    "random": at_random_times,
    "writes": at_every_write,
    "kinds": at_each_kind_of_write,
}


def run(template: Home, folder: Path, how: str, kind: str, count: str) -> dict[str, Any]:
    started = time.monotonic()
    found = HOW[how](template, folder, kind, count)
    return {**found, "seconds": round(time.monotonic() - started, 1)}


def main(folder: Path, *words: str) -> None:
    template = prepare(folder)
    if words:
        print(json.dumps(run(template, folder, *words)))
        return
    for line in sys.stdin:
        try:
            print(json.dumps(run(template, folder, *line.split())), flush=True)
        except AssertionError:
            print(json.dumps({"failed": traceback.format_exc()}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
