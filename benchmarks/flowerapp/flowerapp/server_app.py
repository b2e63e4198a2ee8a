"""Times rounds of FedAvg without and with secede, in turns, then one erasure; writes JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from flowerapp.task import load_model
from secede.erasure.planning import Wishes
from secede.flower import Store, erase, recording
from secede.flower.arrays import size_bytes
from secede.flower.grids import Passing

STEP = {"epochs": 1, "batch_size": 50, "learning_rate": 0.02, "stop_distance": 100.0}
app = ServerApp()


class Counting(Passing):
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


class Timed(FedAvg):
    """FedAvg that knows how long it took itself."""

    inside = 0.0

    def configure_train(self, *given: Any) -> Iterable[Message]:
        """Choose and write the messages."""
        return self._timed(lambda: list(super(Timed, self).configure_train(*given)))

    def aggregate_train(self, *given: Any) -> Any:
        """Average."""
        return self._timed(lambda: super(Timed, self).aggregate_train(*given))

    def _timed(self, call: Callable[[], Any]) -> Any:
        begun = time.perf_counter()
        found = call()
        self.inside += time.perf_counter() - begun
        return found


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Measure, and write it down."""
    config = context.run_config
    store = Store(str(config["home"]), load_model, name="measured", tell=lambda _: None)
    torch.manual_seed(0)
    start = ArrayRecord(load_model().state_dict())
    rows: list[dict[str, float]] = []
    for turn in range(int(config["repeats"]) + 1):  # the first is not counted
        row: dict[str, float] = {}
        begun, counting = time.perf_counter(), Counting(grid)
        plain = FedAvg(fraction_evaluate=0.0)
        plain.start(counting, start, 1, train_config=ConfigRecord({"plain": True}))
        row["plain"], row["plain-bytes"] = time.perf_counter() - begun, counting.down + counting.up
        begun, counting = time.perf_counter(), Counting(grid)
        row |= _recorded(counting, store, start)
        row["ours"], row["ours-bytes"] = time.perf_counter() - begun, counting.down + counting.up
        if turn:
            rows.append(row)
        start = ArrayRecord(store.model() or {})
    counting = Counting(grid)
    wishes = Wishes(
        methods=("projected-ascent",),
        settings={"projected-ascent": STEP},
        rounds=1,
        least_rounds=1,
    )
    last = store.last()
    assert last is not None
    leaver = last.clients[0].client
    begun = time.perf_counter()
    outcome = erase(counting, FedAvg(), store, leaver=f"name:{leaver}", wishes=wishes, pause=0.2)
    found = {
        "rounds": rows,
        "clients": len(last.clients),
        "model-bytes": size_bytes_of(start),
        "erase": time.perf_counter() - begun,
        "erase-state": f"{outcome.state} by {outcome.method}",
        "erase-failures": [str(each) for each in outcome.failures],
        "erase-by-type": counting.by_type,
    }
    Path(str(config["result"])).write_text(json.dumps(found))


def _recorded(grid: Grid, store: Store, start: ArrayRecord) -> dict[str, float]:
    """Do one recorded round; return what our own part of it took, at server and clients."""
    inner = Timed(fraction_evaluate=0.0)
    ours = recording(inner, store, resume=False)
    outside = 0.0
    for name in ("configure_train", "aggregate_train"):
        call = getattr(ours, name)

        def timed(*given: Any, call: Callable[..., Any] = call) -> Any:
            nonlocal outside
            begun = time.perf_counter()
            found = call(*given)
            outside += time.perf_counter() - begun
            return found

        setattr(ours, name, timed)
    result = ours.start(grid, start, 1, train_config=ConfigRecord({"plain": False}))
    clients = [m["own-seconds"] for m in result.train_metrics_clientapp.values()]
    own = float(str(clients[0])) if clients else 0.0
    return {"server-own": outside - inner.inside, "client-own": own}


def size_bytes_of(record: ArrayRecord) -> int:
    """Return the bytes of a model as it is sent."""
    return sum(len(name) + len(array.data) for name, array in record.items())
