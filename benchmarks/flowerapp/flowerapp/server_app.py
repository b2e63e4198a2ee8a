"""Times rounds of FedAvg without and with secede, in turns, then one erasure; writes JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from flowerapp.task import load_model
from secede.erasure.planning.options import EraseOptions
from secede.flower import Store, erase, recording
from secede.flower.protocol.arrays import size_bytes
from secede.flower.rounds.grid import ForwardingGrid

app = ServerApp()


@dataclass(frozen=True)
class Clock:
    """Seconds that passed, and seconds that the processor worked for us, whoever else it serves."""

    wall: float = 0.0
    cpu: float = 0.0

    @classmethod
    def now(cls, *, thread: bool = False) -> Clock:
        """Return both now; `thread`: of this thread alone."""
        return cls(time.perf_counter(), time.thread_time() if thread else time.process_time())

    def __add__(self, other: Clock) -> Clock:
        return Clock(self.wall + other.wall, self.cpu + other.cpu)

    def __sub__(self, other: Clock) -> Clock:
        return Clock(self.wall - other.wall, self.cpu - other.cpu)

    def row(self, name: str, rounds: int) -> dict[str, float]:
        """Return both by name, for one of so many rounds."""
        return {name: self.wall / rounds, f"{name}-cpu": self.cpu / rounds}


class Counting(ForwardingGrid):
    """A grid that counts the bytes of the records that cross it."""

    def __init__(self, inner: Grid) -> None:
        super().__init__(inner)
        self.down, self.up, self.by_type = 0, 0, dict[str, list[int]]()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send, and count."""
        return self.inner.push_messages([self._sent(message) for message in messages])

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Take what is there, and count."""
        return [self._came(reply) for reply in self.inner.pull_messages(message_ids)]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send, wait, and count."""
        made = [self._sent(message) for message in messages]
        return [self._came(r) for r in self.inner.send_and_receive(made, timeout=timeout)]

    def _sent(self, message: Message) -> Message:
        self.down += size_bytes(message)
        row = self.by_type.setdefault(message.metadata.message_type, [0, 0, 0])
        row[0] += 1
        row[1] += size_bytes(message)
        return message

    def _came(self, reply: Message) -> Message:
        if reply.has_content():
            self.up += size_bytes(reply)
            self.by_type.setdefault(reply.metadata.message_type, [0, 0, 0])[2] += size_bytes(reply)
        return reply


class Inside:
    """Knows how long FedAvg took itself, whose own functions are changed for that.

    A strategy that inherits from it, and averages by a function of its own, is looked at closer.
    """

    def __init__(self) -> None:
        self.clock = Clock()

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count what FedAvg takes in the block."""
        names = ("configure_train", "aggregate_train")
        before = {name: getattr(FedAvg, name) for name in names}
        for name, call in before.items():
            setattr(FedAvg, name, self._timed(call))
        try:
            yield
        finally:
            for name, call in before.items():
                setattr(FedAvg, name, call)

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*given: Any) -> Any:
            begun = Clock.now(thread=True)  # others may hash meanwhile
            found = call(*given)
            self.clock += Clock.now(thread=True) - begun
            return found

        return timed


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Measure, and write it down."""
    config = context.run_config
    store = Store(str(config["home"]), load_model, name="measured")
    torch.manual_seed(0)
    start = ArrayRecord(load_model().state_dict())
    rows, rounds = list[dict[str, float]](), int(config["rounds"])
    for turn in range(int(config["repeats"]) + 1):  # the first is not counted
        row: dict[str, float] = {}
        begun, counting = Clock.now(), Counting(grid)
        plain = FedAvg(fraction_evaluate=0.0)
        plain.start(counting, start, rounds, train_config=ConfigRecord({"plain": True}))
        row |= (Clock.now() - begun).row("plain", rounds)
        row["plain-bytes"] = (counting.down + counting.up) / rounds
        begun, counting = Clock.now(), Counting(grid)
        row |= _recorded(counting, store, start, rounds)
        row |= (Clock.now() - begun).row("ours", rounds)
        row["ours-bytes"] = (counting.down + counting.up) / rounds
        if turn:
            rows.append(row)
        start = ArrayRecord(store.last_model() or {})
    counting = Counting(grid)
    options = EraseOptions(max_rounds=5, min_rounds=1)
    last = store.last_round()
    assert last is not None
    leaver = last.clients[0].client
    begun = time.perf_counter()
    outcome = erase(
        counting,
        FedAvg(),
        store,
        leaver=f"name:{leaver}",
        trigger="other",
        options=options,
        pause=0.2,
    )
    found = {
        "rounds": rows,
        "clients": len(last.clients),
        "model-bytes": size_bytes_of(start),
        "erase": time.perf_counter() - begun,
        "erase-state": f"{outcome.state} by {outcome.method}",
        "erase-failures": [
            f"{each['method']}: {each['outcome']}, {each['reason']}" for each in outcome.failures
        ],
        "erase-by-type": counting.by_type,
    }
    Path(str(config["result"])).write_text(json.dumps(found))


def _recorded(grid: Grid, store: Store, start: ArrayRecord, rounds: int) -> dict[str, float]:
    """Do recorded rounds; return what our own part of one took, at the server and at a client."""
    inside, ours = Inside(), recording(FedAvg(fraction_evaluate=0.0), store)
    outside = Clock()
    for name in ("configure_train", "aggregate_train"):
        call = getattr(ours, name)

        def timed(*given: Any, call: Callable[..., Any] = call) -> Any:
            nonlocal outside
            begun = Clock.now()
            found = call(*given)
            outside += Clock.now() - begun
            return found

        setattr(ours, name, timed)
    with inside.timed():
        result = ours.start(grid, start, rounds, train_config=ConfigRecord({"plain": False}))
    told = list(result.train_metrics_clientapp.values())
    own = {
        f"client-own{kind}": sum(float(str(each[f"own-seconds{kind}"])) for each in told) / rounds
        for kind in ("", "-cpu")
    }
    return {**(outside - inside.clock).row("server-own", rounds), **own}


def size_bytes_of(record: ArrayRecord) -> int:
    """Return the bytes of a model as it is sent."""
    return sum(len(name) + len(array.data) for name, array in record.items())
