"""CUDA graphs of training steps: captured once and replayed, without Python in between.

An epoch is cut into blocks of 32, 16, ... 1 full batches and the partial rest, so that a few
graphs serve clients of every size.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import torch

MAX_BLOCK_STEPS = 32
MAX_GRAPHS = 32  # of one replay; graphs for many sizes would fill the memory
# torch takes streams from a small pool, so two replays may get the same one, and whatever a thread
# queues on a stream under capture becomes part of the graph. So one thread at a time queues work on
# the streams of replays. Queueing is short; the device works meanwhile.
_queueing = threading.RLock()


@dataclass(frozen=True)
class Block:
    """Consecutive batches of one size: the start in the order, their number and their size."""

    start: int
    steps: int
    size: int

    @property
    def rows(self) -> slice:
        """The slice of the order that the block covers."""
        return slice(self.start, self.start + self.steps * self.size)


def blocks(count: int, batch_size: int) -> Iterator[Block]:
    """Cut an epoch over `count` samples into blocks whose steps are powers of two."""
    full, rest = divmod(count, batch_size)
    start, steps = 0, MAX_BLOCK_STEPS
    while steps:
        while full >= steps:
            yield Block(start, steps, batch_size)
            start, full = start + steps * batch_size, full - steps
        steps //= 2
    if rest:
        yield Block(start, 1, rest)


class Replay:
    """Functions captured as graphs on one stream; without a GPU they are called directly.

    A function must use the same memory each time and must not wait for the device.
    """

    def __init__(self, device: torch.device) -> None:
        self._captures = device.type == "cuda"
        # From the pool of high-priority streams, which nothing else here uses: the stream of a
        # lane or a recorder is never under capture.
        self._stream = torch.cuda.Stream(device, priority=-1) if self._captures else None
        self._pool = torch.cuda.graph_pool_handle() if self._captures else None
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}

    @contextmanager
    def on_stream(self) -> Iterator[None]:
        """Queue the block's work on this stream, after all work that the caller has queued."""
        if self._stream is None:
            yield
            return
        with _queueing:
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                yield

    @contextmanager
    def on_stream_then_join(self) -> Iterator[None]:
        """Do as `on_stream`, then `join`: even after an error, since queued work goes on."""
        try:
            with self.on_stream():
                yield
        finally:
            self.join()

    def join(self) -> None:
        """Let the caller's stream wait for all work queued here."""
        if self._stream is not None:
            with _queueing:
                torch.cuda.current_stream().wait_stream(self._stream)

    def hold_memory(self, *results: torch.Tensor) -> None:
        """Keep the results' memory until the caller's stream is done with it."""
        if self._stream is not None:
            for result in results:
                result.record_stream(torch.cuda.current_stream())

    def record_event(self) -> torch.cuda.Event | None:
        """Return an event that occurs when all work queued here is done."""
        if self._stream is None:
            return None
        with _queueing:
            event: torch.cuda.Event = self._stream.record_event()
        return event

    def prepare(self, key: Hashable, function: Callable[[], None]) -> None:
        """Capture `function` under `key`; it runs once, and its results must not matter."""
        if not self._captures or key in self._graphs or len(self._graphs) >= MAX_GRAPHS:
            return
        graph = torch.cuda.CUDAGraph()
        with _queueing, _no_collection(), self.on_stream():
            function()  # libraries choose kernels and allocate memory in the first call
            try:
                with torch.cuda.graph(
                    graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
                ):
                    function()
            except BaseException:
                self._end_allocation()
                raise
        self.join()
        self._graphs[key] = graph

    def _end_allocation(self) -> None:
        """Tell torch that the capture has ended.

        It misses that after a failed capture (a model that waits for the device), and would then
        never release cached memory.
        """
        # It raises if the capture has ended; other versions of torch may name it differently.
        with suppress(AttributeError, RuntimeError):
            torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), self._pool)  # type: ignore[arg-type]

    def run(self, key: Hashable, function: Callable[[], None]) -> None:
        """Replay the graph captured under `key`, or call `function` if there is none.

        Call it within `on_stream`: graphs on one stream share the libraries' scratch memory.
        """
        graph = self._graphs.get(key)
        if graph is None:
            function()
        else:
            graph.replay()


@contextmanager
def _no_collection() -> Iterator[None]:
    """Keep Python from freeing old graphs in the block, which would break a capture."""
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
    """Return every client's orders on the device, copied in one transfer."""
    if device.type != "cuda":
        return [list(epochs) for epochs in orders]
    flat = [order for epochs in orders for order in epochs]
    on_device = torch.cat(flat).to(device, non_blocking=True)
    parts = iter(on_device.split([len(order) for order in flat]))
    return [[next(parts) for _ in epochs] for epochs in orders]


def release_cached_memory() -> None:
    """Return cached memory to the device, while no graph is captured."""
    if torch.cuda.is_available():
        with _queueing:
            torch.cuda.empty_cache()
