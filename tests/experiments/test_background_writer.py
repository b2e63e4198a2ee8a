from __future__ import annotations

import threading

import pytest
import torch

from secede.experiments.background_writer import OUTSTANDING, BackgroundWriter


def held(gate: threading.Event) -> None:
    assert gate.wait(10)


def fail() -> None:
    raise ValueError("the disk is full")


def test_jobs_are_done_in_order_while_the_caller_goes_on() -> None:
    done: list[int] = []
    gate = threading.Event()
    with BackgroundWriter("cpu") as writer:
        writer.submit(lambda: held(gate))
        writer.submit(lambda: done.append(0))
        assert done == []
        gate.set()
        for number in range(1, 20):
            writer.submit(lambda number=number: done.append(number))  # type: ignore[misc]
    assert done == list(range(20))


def test_no_more_than_two_jobs_are_outstanding() -> None:
    gate = threading.Event()
    submitted: list[int] = []
    with BackgroundWriter("cpu") as writer:

        def submit_all() -> None:
            for number in range(OUTSTANDING + 1):
                writer.submit(lambda: held(gate))
                submitted.append(number)

        caller = threading.Thread(target=submit_all)
        caller.start()
        caller.join(0.3)
        assert submitted == list(range(OUTSTANDING))
        gate.set()
        caller.join(10)
        assert submitted == list(range(OUTSTANDING + 1))


def test_an_error_comes_back_and_no_later_job_is_done() -> None:
    done: list[int] = []

    def record_all() -> None:
        with BackgroundWriter("cpu") as writer:
            writer.submit(lambda: done.append(0))
            writer.submit(fail)
            for number in range(1, 9):
                writer.submit(lambda number=number: done.append(number))  # type: ignore[misc]

    with pytest.raises(ValueError, match="disk is full"):
        record_all()
    assert done == [0]


def test_the_error_of_the_last_job_comes_at_the_end() -> None:
    writer = BackgroundWriter("cpu")
    with pytest.raises(ValueError, match="disk is full"), writer:
        writer.submit(fail)


def test_a_block_that_fails_finishes_the_running_job_and_drops_the_next() -> None:
    done: list[str] = []
    entered, gate = threading.Event(), threading.Event()

    def running() -> None:
        entered.set()
        gate.wait(10)
        done.append("running")

    def record_all() -> None:
        with BackgroundWriter("cpu") as writer:
            writer.submit(running)
            writer.submit(lambda: done.append("next"))
            assert entered.wait(10)
            threading.Timer(0.1, gate.set).start()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        record_all()
    assert done == ["running"]


def test_jobs_compute_with_as_many_cores_as_the_caller() -> None:
    usual, found = torch.get_num_threads(), list[int]()
    torch.set_num_threads(3)
    try:
        with BackgroundWriter("cpu") as writer:
            writer.submit(lambda: found.append(torch.get_num_threads()))
    finally:
        torch.set_num_threads(usual)
    assert found == [3]


@pytest.mark.gpu
def test_a_job_waits_for_what_the_callers_stream_still_computes() -> None:
    found: list[float] = []
    size = 4096
    with BackgroundWriter("cuda") as writer, torch.cuda.stream(torch.cuda.Stream()):
        for _ in range(20):
            value = torch.eye(size, device="cuda")
            for _ in range(20):
                value = value @ value
            writer.submit(lambda value=value: found.append(float(value.sum())))  # type: ignore[misc]
            del value
    assert found == [float(size)] * 20
