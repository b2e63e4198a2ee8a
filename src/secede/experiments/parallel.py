"""Several turns side by side: each lane takes the next turn when it is done with its last.

Lanes are threads: torch computes without holding Python's lock. On a GPU each has its own stream.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

import torch

GPU_LANES = 8

TurnT = TypeVar("TurnT")


class Stopped(Exception):  # noqa: N818  # nothing went wrong in the lane that raises it
    """A lane ended its turn early because it was asked to stop."""


def lane_count(turns: int, device: str, wanted: int | None = None) -> int:
    """Return how many lanes to open: as many as wanted, or what the device bears.

    One on a CPU, whose cores a single federation fills.
    """
    most = GPU_LANES if device == "cuda" else 1
    return max(1, min(turns, wanted or most))


def take_turns(
    turns: Sequence[TurnT],
    take: Callable[[TurnT, threading.Event], None],
    *,
    lanes: int,
    device: str,
) -> None:
    """Take all turns, started in order, in so many lanes; the first error is raised in the end.

    After an error or Ctrl-C no turn is started any more, and the event given to the running ones
    is set: they raise `Stopped` where they can go on later. A single lane is the calling thread.
    """
    stop = threading.Event()
    if lanes == 1:
        for turn in turns:
            take(turn, stop)
        return
    waiting, errors, lock = iter(turns), list[BaseException](), threading.Lock()

    def lane() -> None:
        with _own_stream(device):
            while not stop.is_set():
                with lock:
                    turn = next(waiting, None)
                if turn is None:
                    return
                try:
                    take(turn, stop)
                except Stopped:
                    return
                except BaseException as error:
                    errors.append(error)
                    stop.set()

    threads = ThreadPoolExecutor(lanes, "lane", use_cores, (torch.get_num_threads(),))
    running: list[Future[None]] = []
    try:
        for _ in range(lanes):
            running.append(threads.submit(lane))
        wait(running)
    except BaseException:
        stop.set()
        wait(running)  # not Thread.join(): interrupted, it takes the thread for ended (3.11)
        raise
    finally:
        threads.shutdown(wait=False)
    if errors:
        raise errors[0]
    for ended in running:
        ended.result()  # an error between turns


def use_cores(count: int) -> None:
    """Let this thread's operations run on `count` cores: how many changes how results round."""
    torch.get_num_threads()  # a thread's first operation takes the process's default: not later
    torch.set_num_threads(count)


def _own_stream(device: str) -> AbstractContextManager[object]:
    return torch.cuda.stream(torch.cuda.Stream()) if device == "cuda" else nullcontext()
