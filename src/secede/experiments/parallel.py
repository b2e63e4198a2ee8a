"""Run jobs in parallel lanes; each lane takes the next job when it is done with its last.

Lanes are threads: torch computes without holding Python's lock. On a GPU each has its own stream.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import nullcontext
from typing import TypeVar

import torch

GPU_LANES = 8

JobT = TypeVar("JobT")


class Stopped(Exception):  # noqa: N818  # not an error of the lane that raises it
    """A lane ended its job early because it was asked to stop."""


def lane_count(jobs: int, device: str, lanes: int | None = None) -> int:
    """Return how many lanes to open: `lanes`, or by default what suits the device.

    That is one on a CPU, whose cores a single federation fills.
    """
    default = GPU_LANES if device == "cuda" else 1
    return max(1, min(jobs, lanes or default))


def run_jobs(
    jobs: Sequence[JobT],
    run: Callable[[JobT, threading.Event], None],
    *,
    lanes: int,
    device: str,
) -> None:
    """Run all jobs, started in order, in so many lanes; raise the first error in the end.

    After an error or Ctrl-C no job is started any more, and the event given to the running ones
    is set: they raise `Stopped` where they can be resumed. A single lane is the calling thread.
    """
    stop = threading.Event()
    if lanes == 1:
        for job in jobs:
            run(job, stop)
        return
    waiting, errors, lock = iter(jobs), list[BaseException](), threading.Lock()

    def lane() -> None:
        with torch.cuda.stream(torch.cuda.Stream()) if device == "cuda" else nullcontext():
            while not stop.is_set():
                with lock:
                    job = next(waiting, None)
                if job is None:
                    return
                try:
                    run(job, stop)
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
        wait(running)  # not Thread.join(): if interrupted, it believes that the thread ended (3.11)
        raise
    finally:
        threads.shutdown(wait=False)
    if errors:
        raise errors[0]
    for finished in running:
        finished.result()  # raises an error from between jobs


def use_cores(count: int) -> None:
    """Let this thread's operations run on `count` cores; results round differently with others."""
    torch.get_num_threads()  # the first operation, which sets the process's default
    torch.set_num_threads(count)
