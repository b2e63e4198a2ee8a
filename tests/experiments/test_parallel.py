from __future__ import annotations

import os
import signal
import threading
import time

import pytest
import torch

from secede.experiments.parallel import Stopped, lane_count, run_jobs


def until_stopped(stop: threading.Event) -> None:
    if stop.wait(10):
        raise Stopped


@pytest.mark.parametrize("lanes", [1, 3, 20])
def test_every_turn_is_taken_once_and_started_in_order(lanes: int) -> None:
    started: list[int] = []
    run_jobs(range(12), lambda turn, stop: started.append(turn), lanes=lanes, device="cpu")
    assert started == list(range(12)) if lanes == 1 else sorted(started) == list(range(12))


def test_as_many_turns_run_at_once_as_there_are_lanes() -> None:
    together = threading.Barrier(3, timeout=10)

    def take(turn: int, stop: threading.Event) -> None:
        together.wait()

    run_jobs(range(6), take, lanes=3, device="cpu")


def test_one_lane_is_the_calling_thread() -> None:
    found: list[threading.Thread] = []
    run_jobs(
        [0], lambda turn, stop: found.append(threading.current_thread()), lanes=1, device="cpu"
    )
    assert found == [threading.current_thread()]


def test_the_first_error_stops_the_others_and_is_raised() -> None:
    started: list[int] = []

    def take(turn: int, stop: threading.Event) -> None:
        started.append(turn)
        if turn == 1:
            raise ValueError("turn 1 is broken")
        until_stopped(stop)

    with pytest.raises(ValueError, match="turn 1 is broken"):
        run_jobs(range(9), take, lanes=2, device="cpu")
    assert started == [0, 1]


def test_an_interrupt_stops_all_lanes_before_it_is_raised() -> None:
    ended: list[int] = []

    def take(turn: int, stop: threading.Event) -> None:
        if turn == 1:
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGINT)  # to the main thread, as Ctrl-C goes
        try:
            until_stopped(stop)
        finally:
            time.sleep(0.1)
            ended.append(turn)

    with pytest.raises(KeyboardInterrupt):
        run_jobs(range(9), take, lanes=2, device="cpu")
    assert sorted(ended) == [0, 1]


def test_lanes_compute_with_as_many_cores_as_the_caller_whatever_other_threads_do() -> None:
    usual, cores, found = torch.get_num_threads(), 3, list[int]()

    def take(turn: int, stop: threading.Event) -> None:
        other = threading.Thread(target=torch.set_num_threads, args=(cores + 1,))
        other.start()
        other.join()
        found.append(torch.get_num_threads())

    torch.set_num_threads(cores)
    try:
        run_jobs(range(2), take, lanes=2, device="cpu")
    finally:
        torch.set_num_threads(usual)
    assert found == [cores, cores]


def test_lanes_are_what_is_wanted_or_what_the_device_bears() -> None:
    assert [lane_count(turns, "cpu") for turns in (0, 1, 2, 9)] == [1, 1, 1, 1]
    assert [lane_count(turns, "cuda") for turns in (0, 1, 5, 64)] == [1, 1, 5, 8]
    assert [lane_count(turns, "cpu", 5) for turns in (1, 9)] == [1, 5]


@pytest.mark.gpu
def test_every_lane_has_its_own_stream_on_a_gpu() -> None:
    together, found = threading.Barrier(2, timeout=10), set[int]()

    def take(turn: int, stop: threading.Event) -> None:
        found.add(torch.cuda.current_stream().cuda_stream)
        together.wait()

    run_jobs(range(2), take, lanes=2, device="cuda")
    assert len(found | {torch.cuda.default_stream().cuda_stream}) == 3
