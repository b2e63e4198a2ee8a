"""The fused kernels against the plain loop: on a GPU if there is one, else in an interpreter.

Tests `federation/executors/fused/` too.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import nn

from harness import networks
from secede import state as states
from secede.data.samples import Samples
from secede.federation.engine import LocalTraining
from secede.federation.executors.executor import Executor, Job, Loop, Refused, Work
from secede.federation.executors.fused.executor import Fused
from secede.federation.training import orders

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytest.importorskip("triton")


def cnn(
    depth: int, channels: Sequence[int], kernel: int, side: tuple[int, int], classes: int
) -> nn.Sequential:
    layers: list[nn.Module] = []
    before, (high, wide) = depth, side
    for after in channels:
        layers += [
            nn.Conv2d(before, after, kernel, padding=kernel // 2),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
        before, high, wide = after, high // 2, wide // 2
    layers += [nn.Flatten(), nn.Linear(before * high * wide, 12), nn.ReLU(), nn.Linear(12, classes)]
    return nn.Sequential(*layers)


def federation(
    model: nn.Module, shape: tuple[int, ...], classes: int, sizes: Sequence[int], **how: float
) -> tuple[Work, list[Job]]:
    training = LocalTraining(**{"batch_size": 6, "learning_rate": 0.1, **how})  # type: ignore[arg-type]
    work = Work(model=model.to(DEVICE), training=training)
    draw = torch.Generator().manual_seed(1)
    start = states.of(work.model)
    jobs = [
        Job(
            state=start,
            samples=Samples(
                torch.randn(n, *shape, generator=draw),
                torch.randint(0, classes, (n,), generator=draw),
            ).to(DEVICE),
            orders=orders(n, training.epochs, draw),
            noise=0,
        )
        for n in sizes
    ]
    return work, jobs


def fused(work: Work, jobs: Sequence[Job], chunk: int | None = None) -> Executor:
    return Fused(work, jobs[0].samples, chunk=chunk, anywhere=True)


def assert_equal(found: Sequence[states.State], expected: Sequence[states.State]) -> None:
    for one, other in zip(found, expected, strict=True):
        states.check_schema(one, other)
        for name, value in other.items():
            torch.testing.assert_close(one[name], value, rtol=1e-4, atol=5e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("depth", "channels", "kernel", "side", "classes"),
    [
        (1, (16,), 3, (4, 4), 10),
        (3, (16, 20), 3, (5, 7), 3),  # odd sides, channels that are no power of two
        (1, (8, 16), 5, (8, 8), 47),
    ],
)
def test_a_round_equals_the_plain_loop(
    depth: int, channels: tuple[int, ...], kernel: int, side: tuple[int, int], classes: int
) -> None:
    torch.manual_seed(0)
    model = cnn(depth, channels, kernel, side, classes)
    work, jobs = federation(model, (depth, *side), classes, [8, 6, 2])
    assert_equal(fused(work, jobs).train(jobs), Loop(work).train(jobs))


@pytest.mark.slow
def test_epochs_chunks_and_clients_with_starts_of_their_own_equal_the_plain_loop() -> None:
    torch.manual_seed(0)
    work, jobs = federation(
        cnn(1, (16,), 3, (4, 4), 3), (1, 4, 4), 3, [8, 3, 6], epochs=2, momentum=0.5
    )
    other = {name: value + 0.01 for name, value in jobs[0].state.items()}
    jobs[1] = Job(state=other, samples=jobs[1].samples, orders=jobs[1].orders, noise=jobs[1].noise)
    executor = fused(work, jobs, chunk=2)
    expected = Loop(work).train(jobs)
    found = executor.train(jobs)
    assert_equal(found, expected)
    again = executor.train(jobs)  # on the places that the first round left
    assert [states.digest(s) for s in again] == [states.digest(s) for s in found]


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (networks.mlp(), "expected blocks of Conv2d"),
        (networks.batch_norm(), "no buffers"),
        (networks.dropout(), "expected blocks of Conv2d"),
        (networks.Viewing(), "not an nn.Sequential"),
        (networks.frozen(), "trainable"),
        (nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()), "padding"),
        (
            nn.Sequential(
                nn.Conv2d(2, 4, 3, padding=1, stride=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
            ),
            "stride 1",
        ),
        (
            nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten()),
            "expected Conv2d, ReLU, MaxPool2d",
        ),
        (
            nn.Sequential(
                nn.Conv2d(2, 4, 3, padding=1),
                nn.ReLU(),
                nn.MaxPool2d(2, ceil_mode=True),
                nn.Flatten(),
            ),
            "no plain MaxPool2d",
        ),
    ],
)
def test_other_networks_are_refused_with_a_reason(model: nn.Module, why: str) -> None:
    work = Work(model=model.to(DEVICE), training=LocalTraining())
    with pytest.raises(Refused, match=why):
        Fused(work, networks.samples(4, device=DEVICE), anywhere=True)


def test_another_loss_is_refused() -> None:
    work = Work(
        model=networks.conv().to(DEVICE),
        training=LocalTraining(),
        loss=lambda outputs, labels: nn.functional.cross_entropy(outputs, labels) * 2,
    )
    with pytest.raises(Refused, match="cross-entropy"):
        Fused(work, networks.samples(4, device=DEVICE), anywhere=True)
