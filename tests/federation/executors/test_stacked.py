"""Tests `federation/executors/chunks.py` too."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness import networks
from secede import state as states
from secede.errors import ConfigError
from secede.federation.executors import chunks
from secede.federation.executors.choose import choose
from secede.federation.executors.executor import Loop
from secede.federation.executors.stacked import Stacked, _Stack, shared_blocks


@given(sizes=st.lists(st.integers(1, 60), min_size=1, max_size=6), batch_size=st.integers(1, 9))
def test_stretches_give_each_client_its_batches_once_and_in_order(
    sizes: list[int], batch_size: int
) -> None:
    falling = sorted(sizes, reverse=True)
    rows: dict[int, list[int]] = {place: [] for place in range(len(falling))}
    for stretch in shared_blocks(falling, batch_size):
        for place in range(stretch.first, stretch.last):
            covered = range(falling[place])[stretch.block.rows]
            assert len(covered) == stretch.block.steps * stretch.block.size
            rows[place] += covered
    assert rows == {place: list(range(size)) for place, size in enumerate(falling)}


def test_statistics_and_random_numbers_are_refused_before_any_training() -> None:
    for network, why in ((networks.batch_norm, "BatchNorm"), (networks.dropout, "random numbers")):
        with pytest.raises(ConfigError, match=why):
            choose("stacked", networks.work(network), networks.samples(4), clients=4)


def test_a_stack_that_does_not_fit_is_halved_until_it_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work = networks.work(networks.mlp)
    jobs = networks.jobs(work, [9, 17, 5, 12, 8, 8, 3])
    tried: list[int] = []
    fits = _Stack.train

    def train(self: _Stack, some: list[object]) -> object:
        tried.append(len(some))
        if len(some) > 2:
            raise torch.OutOfMemoryError("pretended")
        return fits(self, some)  # type: ignore[arg-type]

    monkeypatch.setattr(_Stack, "train", train)
    engine = Stacked(work, networks.samples(4), chunk=7)
    found = engine.train(jobs)
    assert tried == [7, 3, 1, 1, 1, 1, 1, 1, 1]
    assert engine.chunks.size == 1
    for one, other in zip(found, Loop(work).train(jobs), strict=True):
        assert states.distance(one, other) < 1e-5


def test_one_client_that_does_not_fit_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def train(self: _Stack, some: list[object]) -> object:
        raise torch.OutOfMemoryError("pretended")

    monkeypatch.setattr(_Stack, "train", train)
    work = networks.work(networks.mlp)
    with pytest.raises(torch.OutOfMemoryError):
        Stacked(work, networks.samples(4)).train(networks.jobs(work, [9, 9]))


def test_the_stack_is_cut_to_the_memory_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    work = networks.work(networks.mlp)
    one = chunks.client_bytes(work, networks.samples(8))
    monkeypatch.setattr(chunks, "total_bytes", lambda _: 10 * one)
    assert Stacked(work, networks.samples(8)).chunks.size == 2  # a quarter of it
    monkeypatch.setattr(chunks, "total_bytes", lambda _: 1)
    assert Stacked(work, networks.samples(8)).chunks.size == 1
