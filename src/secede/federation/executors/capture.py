"""Steps that are captured once as CUDA graphs and replayed: no Python and no launches between.

An epoch is cut into blocks of 32, 16, ... 1 full batches and the partial rest, so that a handful
of graphs serve clients of every size.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import torch

LARGEST_BLOCK = 32
MOST_GRAPHS = 32  # of one replay; clients of many sizes would fill the memory with them
# torch hands out streams from a small pool, so two replays may get the same one, and whatever any
# thread queues on a stream under capture becomes part of the graph. So one thread at a time queues
# work on the streams of replays. Queueing is short; the device works meanwhile.
_queueing = threading.RLock()


@dataclass(frozen=True)
class Block:
    """Some equally large batches in a row: where they start in the order, how many, how large."""

    start: int
    steps: int
    size: int

    @property
    def rows(self) -> slice:
        """The rows of the order that the block covers."""
        return slice(self.start, self.start + self.steps * self.size)


def blocks(count: int, batch_size: int) -> Iterator[Block]:
    """Cut an epoch over `count` samples into blocks whose steps are powers of two."""
    full, rest = divmod(count, batch_size)
    start, steps = 0, LARGEST_BLOCK
    while steps:
        while full >= steps:
            yield Block(start, steps, batch_size)
            start, full = start + steps * batch_size, full - steps
        steps //= 2
    if rest:
        yield Block(start, 1, rest)


class Replay:
    """Runs functions on one stream, each from its captured graph; plainly where there is no GPU.

    A function must read and write the same memory each time and must not wait for the device.
    """

    def __init__(self, device: torch.device) -> None:
        self._captures = device.type == "cuda"
        # From the pool of urgent streams, which nothing else here takes from: a lane or a recorder
        # never finds its own stream under capture.
        self._stream = torch.cuda.Stream(device, priority=-1) if self._captures else None
        self._pool = torch.cuda.graph_pool_handle() if self._captures else None
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Send the block's work to this stream, after all that the caller has queued so far."""
        if self._stream is None:
            yield
            return
        with _queueing:
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                yield

    @contextmanager
    def apart_until_rejoined(self) -> Iterator[None]:
        """Do what `apart` does, then `rejoin`: even after an error, for what was queued goes on."""
        try:
            with self.apart():
                yield
        finally:
            self.rejoin()

    def rejoin(self) -> None:
        """Let the caller's stream wait for all that was queued here."""
        if self._stream is not None:
            with _queueing:
                torch.cuda.current_stream().wait_stream(self._stream)

    def keep(self, *results: torch.Tensor) -> None:
        """Keep memory taken on this stream until the caller's stream is done with it."""
        if self._stream is not None:
            for result in results:
                result.record_stream(torch.cuda.current_stream())

    def mark(self) -> torch.cuda.Event | None:
        """Return an event that has happened when all that was queued here is done."""
        if self._stream is None:
            return None
        with _queueing:
            event: torch.cuda.Event = self._stream.record_event()
        return event

    def prepare(self, key: Hashable, function: Callable[[], None]) -> None:
        """Capture `function` under `key`; it runs once, so its results must not matter yet."""
        if not self._captures or key in self._graphs or len(self._graphs) >= MOST_GRAPHS:
            return
        graph = torch.cuda.CUDAGraph()
        with _queueing, _no_collection(), self.apart():
            function()  # libraries choose their kernels and take their memory on the first call
            try:
                with torch.cuda.graph(
                    graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
                ):
                    function()
            except BaseException:
                self._end_allocation()
                raise
        self.rejoin()
        self._graphs[key] = graph

    def _end_allocation(self) -> None:
        """Tell torch that nothing is captured any more.

        It misses that if the capture broke (a network that waits for the device), and from then on
        would never give cached memory back.
        """
        # It raises if the capture did end; another torch may have another name for it.
        with suppress(AttributeError, RuntimeError):
            torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), self._pool)  # type: ignore[arg-type]

    def run(self, key: Hashable, function: Callable[[], None]) -> None:
        """Replay what was captured under `key`, or call `function` where nothing was.

        To be called in `apart`: graphs that share a stream also share libraries' scratch memory.
        """
        graph = self._graphs.get(key)
        if graph is None:
            function()
        else:
            graph.replay()


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep Python from freeing old graphs in the block, which would spoil a capture."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def to_device(
    orders: Sequence[Sequence[torch.Tensor]], device: torch.device
) -> list[list[torch.Tensor]]:
    """Return every client's orders on the device, moved in one go."""
    if device.type != "cuda":
        return [list(epochs) for epochs in orders]
    flat = [order for epochs in orders for order in epochs]
    moved = torch.cat(flat).to(device, non_blocking=True)
    parts = iter(moved.split([len(order) for order in flat]))
    return [[next(parts) for _ in epochs] for epochs in orders]


def give_back_memory() -> None:
    """Give freed memory back to the device, while nobody captures."""
    if torch.cuda.is_available():
        with _queueing:
            torch.cuda.empty_cache()
