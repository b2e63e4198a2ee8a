"""Works on a journal in forked processes, kills each, and looks at what it left.

    python -m erasure.killed FOLDER random COUNT     killed after a random time
    python -m erasure.killed FOLDER statements -     killed before each statement in turn
    python -m erasure.killed FOLDER creation -       killed at each call while the file is made

A worker says over a pipe what it was told is written. Prints what was counted, as JSON.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from harness.erasure.questions import ALLOWED, People, later, people
from secede.erasure.storage.journal import Journal
from secede.erasure.storage.journal_entries import Accepted, Holder

Tell = Callable[[str], object]
Work = Callable[[Tell], None]


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Worker:
    """A fork that does `work`; what it reports stays readable after it was killed."""

    def __init__(self, work: Work) -> None:
        reading, writing = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                work(lambda line: os.write(writing, f"{line}\n".encode()))
                os._exit(0)
            except BaseException as error:
                os.write(2, f"{error!r}\n".encode())
                os._exit(1)
        os.close(writing)
        self._pipe = os.fdopen(reading)

    def ended(self) -> tuple[bool, list[str]]:
        """Wait; return whether it was killed, and what it reported."""
        with self._pipe as pipe:
            reported = pipe.read().splitlines()
        _, status = os.waitpid(self.pid, 0)
        assert status in (0, signal.SIGKILL), f"the worker failed: {status}"
        return status == signal.SIGKILL, reported


def work(journal: Journal, who: People, now: datetime, count: int, tell: Tell) -> None:
    """Finish the request that is open, then carry `count` new ones from begin to end."""
    for entry in journal.entries():
        if entry.open:
            finish(journal, entry.id, now, tell)
    for _ in range(count):
        outcome = who.send(journal, who.ask("north", now=now), now, quota=10**9)
        assert isinstance(outcome, Accepted)
        tell(f"{outcome.entry.id} 0")
        finish(journal, outcome.entry.id, now, tell)


def finish(journal: Journal, number: int, now: datetime, tell: Tell) -> None:
    """Go on where the request's way ended."""
    holder = Holder()
    journal.lease(number, holder, now, 60)
    for place in range(len(journal.transitions(number)), 5):
        state = "done" if place == 4 else "working"
        journal.append(number, state, {"at": place}, now, holder=holder, allowed=ALLOWED)
        tell(f"{number} {place}")


def look(path: Path) -> dict[str, int]:
    """Return the last transition of each request; a half or doubled one fails here."""
    with Journal(path) as journal:
        found = {}
        for entry in journal.entries():
            way = journal.transitions(entry.id)
            assert [t.number for t in way] == list(range(len(way)))
            assert [t.details.get("at", 0) for t in way] == list(range(len(way)))
            assert entry.open == (len(way) < 5)
            journal.request(entry.id)
            found[str(entry.id)] = len(way) - 1
        assert sum(entry.open for entry in journal.entries()) <= 1
    return found


def compare(before: dict[str, int], after: dict[str, int], reported: list[str]) -> None:
    """Fail if something reported is lost, or more than the one in flight was added."""
    told = dict(before)
    for line in reported:
        number, place = line.split()
        assert int(place) == told.get(number, -1) + 1
        told[number] = int(place)
    extra = sum(after[n] - told.get(n, -1) for n in after)
    assert all(after.get(n, -1) >= place for n, place in told.items()), "something was lost"
    assert extra <= 1, "something was written twice"


def at_random_times(path: Path, who: People, count: int) -> dict[str, int]:
    dice, before = random.Random(11), look(path)
    for attempt in range(count):
        now = later(hours=attempt)  # so that a dead worker's lease has lapsed

        def endless(tell: Tell, now: datetime = now) -> None:
            with Journal(path) as journal:
                work(journal, who, now, 10**6, tell)

        worker = Worker(endless)
        time.sleep(dice.random() * 0.04)
        os.kill(worker.pid, signal.SIGKILL)
        _, reported = worker.ended()
        after = look(path)
        compare(before, after, reported)
        before = after
    return {"kills": count, "requests": len(before), "transitions": sum(before.values())}


def before_each_statement(path: Path, who: People) -> dict[str, int]:
    before, kills = look(path), 0
    while True:

        def counted(tell: Tell, left: int = kills) -> None:
            statements = itertools.count()
            with Journal(path) as journal:
                journal.connection.set_trace_callback(
                    lambda _: die() if next(statements) == left else None
                )
                work(journal, who, later(hours=left), 1, tell)

        killed, reported = Worker(counted).ended()
        after = look(path)
        compare(before, after, reported)
        before = after
        if not killed:  # there are no more statements than that
            return {"kills": kills, "requests": len(before), "transitions": sum(before.values())}
        kills += 1


def while_it_is_made(folder: Path) -> dict[str, int]:
    kills = 0
    for name in ("open", "fsync", "link", "unlink", "close"):
        for nth in itertools.count():
            path = folder / f"{name}-{nth}" / "journal.db"

            def made(_: Tell, path: Path = path, name: str = name, nth: int = nth) -> None:
                genuine, calls = getattr(os, name), itertools.count()

                def counted(*args: Any, **more: Any) -> Any:
                    if next(calls) == nth:
                        die()
                    return genuine(*args, **more)

                setattr(os, name, counted)
                Journal(path).close()

            killed, _ = Worker(made).ended()
            assert look(path) == {}  # absent and made now, or whole: never in between
            if not killed:
                break
            kills += 1
    return {"kills": kills}


def main(folder: Path, how: str, count: str) -> None:
    who = people(folder / "keys", "north")
    path = folder / "journal.db"
    if how == "random":
        found = at_random_times(path, who, int(count))
    elif how == "statements":
        found = before_each_statement(path, who)
    else:
        found = while_it_is_made(folder)
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
