"""Write records in a separate thread, while the next round trains."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import Self

import torch

from secede.experiments.parallel import use_cores

OUTSTANDING = 2  # jobs that may wait or run before `submit` waits for the oldest


class BackgroundWriter:
    """Runs jobs one after another; after an error it runs no more and raises it to the caller.

    The end of a `with` block waits for all jobs. If the block failed, the running job is finished
    and those behind it are dropped.
    """

    def __init__(self, device: str) -> None:
        self._thread = ThreadPoolExecutor(1, "writer", use_cores, (torch.get_num_threads(),))
        self._stream = torch.cuda.Stream() if device == "cuda" else None
        self._pending: deque[Future[None]] = deque()
        self._broken = False

    def submit(self, job: Callable[[], None]) -> None:
        """Run `job` after all before it; raise the error of an earlier one."""
        while self._pending and (len(self._pending) >= OUTSTANDING or self._pending[0].done()):
            self._finish_oldest()
        # What the job reads may still be computed on the stream of this thread.
        ready = torch.cuda.current_stream().record_event() if self._stream else None
        self._pending.append(self._thread.submit(self._run, job, ready))

    def drain(self) -> None:
        """Wait until all jobs are done; raise the error of one of them."""
        while self._pending:
            self._finish_oldest()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self.drain()
        finally:
            self._broken = True
            wait(self._pending)
            self._thread.shutdown(wait=False)

    def _finish_oldest(self) -> None:
        self._pending[0].result()
        self._pending.popleft()

    def _run(self, job: Callable[[], None], ready: torch.cuda.Event | None) -> None:
        if self._broken:
            return  # records that end early can be resumed, those with a gap cannot
        try:
            if self._stream is None or ready is None:
                job()
                return
            with torch.cuda.stream(self._stream):
                self._stream.wait_event(ready)
                job()
                # The job holds what it reads, which must live until the device is done with it.
                self._stream.synchronize()
        except BaseException:
            self._broken = True
            raise
