"""Whether an executor may be trusted with some work: it is tried beside the plain loop first.

The trial is a turn of a few small batches, the last one partial. It finds what no inspection of a
network finds: random numbers, statistics that change, control flow that depends on the data.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from secede import state as states
from secede.data.samples import Samples
from secede.federation.executors.executor import Executor, Job, Refused, Work
from secede.federation.executors.loop import Loop
from secede.federation.training import batch_loss
from secede.seeding import torch_seeded
from secede.state import State

BATCH = 16
# Largest deviation of the trained step, as a share of its length, that rounding explains.
TOLERANCE = {"float32": 1e-3, "tf32": 5e-2, "bf16": 2e-1}


def draws_random_numbers(work: Work, example: Samples) -> bool:
    """Return whether a training step draws from torch's global generators, as dropout does."""
    with torch_seeded(0):
        before = _generators(work.device)
        _pass(work, copy.deepcopy(work.model), example)
        after = _generators(work.device)
    return not all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def changes_buffers(work: Work, example: Samples) -> bool:
    """Return whether a training step changes buffers, as BatchNorm does its statistics."""
    model = copy.deepcopy(work.model)
    before = [buffer.clone() for buffer in model.buffers()]
    with torch_seeded(0):
        _pass(work, model, example)
    return not all(torch.equal(a, b) for a, b in zip(before, model.buffers(), strict=True))


def _pass(work: Work, model: nn.Module, example: Samples) -> None:
    """Run forward and backward on two samples, each twice: BatchNorm wants more than one."""
    few = example.take(torch.arange(min(2, len(example)), device=example.y.device))
    x, y = few.x.repeat_interleave(2, dim=0), few.y.repeat_interleave(2, dim=0)
    batch_loss(model.train(), x, y, loss=work.loss, precision=work.precision).backward()


def check(build: Callable[[Work], Executor], work: Work, example: Samples) -> None:
    """Raise `Refused` unless what `build` makes trains a few small batches as the loop does."""
    size = min(BATCH, work.training.batch_size, max(1, len(example) // 2))
    small = replace(work, training=replace(work.training, batch_size=size, epochs=1))
    job = _job(small, example)
    expected = Loop(small).train([job])[0]
    try:
        found = build(small).train([job, job])
    except Refused:
        raise
    except Exception as error:
        told = " ".join(f"{type(error).__name__}: {error}".split())
        raise Refused(f"it fails on this network ({told[:200]})") from error
    for state in found:
        _compare(state, expected, job.state, TOLERANCE[work.precision])


def _job(work: Work, example: Samples) -> Job:
    size = work.training.batch_size
    count = min(len(example), 5 * size // 2)
    if count > 1 and count % size == 1:
        count -= 1  # BatchNorm cannot normalise a batch of one
    chosen = example.take(torch.arange(count, device=example.y.device))
    return Job(
        state=states.of(work.model),
        samples=chosen,
        orders=(torch.arange(count).flip(0),),
        noise=0,
    )


def _compare(found: State, expected: State, start: State, tolerance: float) -> None:
    moved, deviation = 0.0, 0.0
    for name, value in expected.items():
        if not value.is_floating_point():
            if not torch.equal(found[name], value):
                raise Refused(f"it counts {name!r} differently from the plain loop")
            continue
        moved += _squared(value, start[name])
        deviation += _squared(found[name], value)
    if not deviation <= tolerance**2 * moved:
        share = (deviation / moved) ** 0.5 if moved else float("inf")
        raise Refused(
            f"its step differs from the plain loop's by {share:.2g} of its length; rounding "
            f"explains {tolerance:g}"
        )


def _squared(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).square().sum())


def _generators(device: torch.device) -> list[Tensor]:
    found = [torch.get_rng_state()]
    if device.type == "cuda":
        found.append(torch.cuda.get_rng_state(device))
    return found
