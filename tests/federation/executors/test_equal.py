"""Every executor against the plain loop: whole rounds, unequal clients, partial last batches.

Tests `federation/executors/cpu.py`, `federation/executors/executor.py` and
`federation/executors/graphs.py` too.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from harness import networks
from secede import state as states
from secede.federation.executors.choose import draws_random_numbers
from secede.federation.executors.cpu import Cpu
from secede.federation.executors.executor import Executor, Loop, Work
from secede.federation.executors.graphs import Graphs
from secede.federation.executors.stacked import Stacked


def cpu(work: Work) -> Executor:
    return Cpu(work, draws=draws_random_numbers(work, networks.samples(4)), channels_last=False)


def cpu_channels_last(work: Work) -> Executor:
    return Cpu(work, draws=draws_random_numbers(work, networks.samples(4)))


def graphs(work: Work) -> Executor:
    draws = draws_random_numbers(work, networks.samples(4))
    return Graphs(work, draws=draws, slots=3, anywhere=True)


def stacked(work: Work) -> Executor:
    return Stacked(work, networks.samples(4), chunk=3)


EXECUTORS = {f.__name__: f for f in (cpu, cpu_channels_last, graphs, stacked)}


def assert_equal(found: Sequence[states.State], expected: Sequence[states.State]) -> None:
    for one, other in zip(found, expected, strict=True):
        states.check_schema(one, other)
        for name, value in other.items():
            torch.testing.assert_close(one[name], value, rtol=1e-4, atol=2e-6)


def can(executor: str, network: str) -> bool:
    if executor == "stacked":
        return network in networks.PLAIN
    if executor == "graphs" and network == "averaging":
        return False
    return not (executor == "cpu_channels_last" and network == "viewing")


CASES = [(e, n) for e in EXECUTORS for n in networks.ALL if can(e, n)]


@pytest.mark.parametrize(("executor", "network"), CASES)
def test_a_round_equals_the_plain_loop(executor: str, network: str) -> None:
    work = networks.work(networks.ALL[network], epochs=2)
    jobs = networks.jobs(work, [21, 8, 3, 40, 21])
    assert_equal(EXECUTORS[executor](work).train(jobs), Loop(work).train(jobs))


@settings(max_examples=40, deadline=None)
@given(
    executor=st.sampled_from(sorted(EXECUTORS)),
    network=st.sampled_from(["conv", "mlp", "batch_norm", "dropout", "tied", "frozen"]),
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=7),
    batch_size=st.integers(1, 12),
    epochs=st.integers(1, 2),
    momentum=st.sampled_from([0.0, 0.5, 0.9]),
)
def test_rounds_of_any_shape_equal_the_plain_loop(
    executor: str, network: str, sizes: list[int], batch_size: int, epochs: int, momentum: float
) -> None:
    assume(can(executor, network))
    if network == "batch_norm":  # it cannot normalise a batch of one sample
        assume(batch_size > 1 and all(size % batch_size != 1 for size in sizes))
    work = networks.work(
        networks.ALL[network],
        batch_size=batch_size,
        epochs=epochs,
        momentum=momentum,
        learning_rate=0.02,  # at 0.1 batches of one sample diverge, and rounding grows with them
    )
    jobs = networks.jobs(work, sizes)
    assert_equal(EXECUTORS[executor](work).train(jobs), Loop(work).train(jobs))


@pytest.mark.parametrize(("executor", "network"), CASES)
def test_the_same_jobs_give_the_same_digests_again_and_in_another_order(
    executor: str, network: str
) -> None:
    work = networks.work(networks.ALL[network])
    engine = EXECUTORS[executor](work)
    jobs = networks.jobs(work, [21, 9, 21, 16])
    first = [states.digest(state) for state in engine.train(jobs)]
    assert [states.digest(state) for state in engine.train(jobs)] == first
    if executor != "stacked":  # there, company may change the rounding
        assert [states.digest(s) for s in engine.train(jobs[::-1])] == first[::-1]


@pytest.mark.parametrize("network", ["conv", "mlp", "dropout", "batch_norm"])
def test_bf16_follows_the_plain_loop_in_bf16(network: str) -> None:
    work = networks.work(networks.ALL[network], precision="bf16")
    jobs = networks.jobs(work, [21, 9])
    expected = Loop(work).train(jobs)
    for found, want, job in zip(graphs(work).train(jobs), expected, jobs, strict=True):
        assert difference(found, want) < 0.1 * difference(want, job.state)


def test_a_client_trained_on_one_core_equals_the_loop_on_one_core_but_for_the_last_digit() -> None:
    # The fused optimiser may round differently in the last digit, so a step without momentum.
    work = networks.work(networks.mlp, momentum=0.0)
    jobs = networks.jobs(work, [21, 9])
    expected = Loop(work).train(jobs)
    for found, want in zip(cpu(work).train(jobs), expected, strict=True):
        assert difference(found, want) <= 1e-7 * difference(want, jobs[0].state)


def test_a_buffer_that_the_network_replaces_is_uploaded_and_does_not_pass_to_the_next_client() -> (
    None
):
    work = networks.work(networks.Averaging, batch_size=4)
    jobs = networks.jobs(work, [4, 4])
    for build in (Loop, cpu):
        found = build(work).train(jobs)
        for state, job in zip(found, jobs, strict=True):
            assert state["seen"].item() == pytest.approx(0.1 * job.samples.x.mean().item())


def test_results_do_not_share_memory_with_the_executor_or_each_other() -> None:
    for build in EXECUTORS.values():
        work = networks.work(networks.mlp)
        engine, jobs = build(work), networks.jobs(work, [9, 9])
        kept = engine.train(jobs)
        before = [states.digest(state) for state in kept]
        engine.train(jobs[::-1])
        for value in kept[0].values():
            value.zero_()
        assert states.digest(kept[1]) == before[1]
        assert states.digest(engine.train(jobs)[0]) == before[0]


def difference(a: states.State, b: states.State) -> float:
    return states.distance(floats(a), floats(b))


def floats(state: states.State) -> dict[str, Tensor]:
    return {name: value for name, value in state.items() if value.is_floating_point()}
