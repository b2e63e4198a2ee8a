"""Choose an executor: the named one, or the fastest that can do the work.

The choice depends on the device, the model and the number of clients, never on measured time, so
the same experiment always gets the same executor. A trial trains on a few small batches, the last
one partial, and compares with the plain loop. It finds what inspecting the model cannot: random
numbers, changing statistics, control flow that depends on the data.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from secede import state as states
from secede.data import Samples
from secede.errors import ConfigError
from secede.federation.executors import AUTO, check_name
from secede.federation.executors.cpu import Cpu
from secede.federation.executors.executor import Executor, Job, Loop, Refused, Work
from secede.federation.executors.fused.executor import Fused
from secede.federation.executors.graphs import Graphs
from secede.federation.executors.stacked import Stacked
from secede.federation.training import batch_loss
from secede.seeding import torch_seeded
from secede.state import State
from secede.text import describe_exception

MIN_STACKED_CLIENTS = 4  # stacking pays from this number on
TRIAL_BATCH = 16
# The largest deviation of a training step, as a share of its length, that rounding explains.
TOLERANCE = {"float32": 1e-3, "tf32": 5e-2, "bf16": 2e-1}
MAX_TIPPED_DEVIATION = 0.4  # if rounding tips a ReLU or a maximum in one of the jobs


@dataclass(frozen=True)
class Choice:
    """The chosen executor, and a note on why faster ones cannot do the work."""

    executor: Executor
    note: str = ""

    @property
    def name(self) -> str:
        """The executor's name, as records hold it."""
        return self.executor.name


def choose(name: str, work: Work, example: Samples, *, clients: int) -> Choice:
    """Return the executor called `name`; for 'auto', the first that can do the work.

    `example` are some of the federation's samples, to test executors on.
    """
    check_name(name)
    refusals: list[str] = []
    for candidate in _candidates(work, clients) if name == AUTO else (name,):
        try:
            return Choice(_build(candidate, work, example), "; ".join(refusals))
        except Refused as refusal:
            if name != AUTO:
                raise ConfigError(
                    f"executor {name!r} cannot run this federation: {refusal}; 'auto' finds another"
                ) from refusal
            refusals.append(f"not {candidate}: {refusal}")
    raise AssertionError("the plain loop refuses nothing")


def _candidates(work: Work, clients: int) -> tuple[str, ...]:
    if work.device.type != "cuda":
        return ("cpu", "loop")
    if any(isinstance(m, nn.modules.conv._ConvNd) for m in work.model.modules()):
        return ("fused", "graphs", "loop")
    if clients >= MIN_STACKED_CLIENTS:
        return ("stacked", "graphs", "loop")
    return ("graphs", "loop")


def _build(name: str, work: Work, example: Samples) -> Executor:
    if name == "loop":
        return Loop(work)
    draws = draws_random_numbers(work, example)
    if name == "cpu":
        return _cpu(work, example, draws)
    if name == "stacked" and draws:
        raise Refused("it cannot give each client its own random numbers (dropout)")
    if name == "stacked" and changes_buffers(work, example):
        raise Refused("it cannot keep each client's own statistics (BatchNorm)")
    if name == "graphs" and replaces_buffers(work, example):
        raise Refused("it cannot follow buffers that the model replaces in training")
    makers: dict[str, Callable[[Work], Executor]] = {
        "graphs": lambda w: Graphs(w, draws=draws),
        "fused": lambda w: Fused(w, example),
        "stacked": lambda w: Stacked(w, example),
    }
    # The fused kernels are compiled for one batch size; two sizes would take twice the time.
    batch = work.training.batch_size if name == "fused" else TRIAL_BATCH
    try_out(makers[name], work, example, batch=batch)
    return makers[name](work)


def _cpu(work: Work, example: Samples, draws: bool) -> Executor:
    """Return the CPU executor; channels last, unless the model relies on the usual layout."""
    has_images = any(p.ndim == 4 for p in work.model.parameters())
    if has_images:
        try:
            try_out(lambda w: Cpu(w, draws=draws), work, example)
            return Cpu(work, draws=draws)
        except Refused:
            pass  # the model relies on the usual layout
    try_out(lambda w: Cpu(w, draws=draws, channels_last=False), work, example)
    return Cpu(work, draws=draws, channels_last=False)


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


def replaces_buffers(work: Work, example: Samples) -> bool:
    """Return whether a training step replaces buffers by other tensors."""
    model = copy.deepcopy(work.model)
    before = [id(buffer) for buffer in model.buffers()]
    with torch_seeded(0):
        _pass(work, model, example)
    return before != [id(buffer) for buffer in model.buffers()]


def _pass(work: Work, model: nn.Module, example: Samples) -> None:
    """Run forward and backward on two samples, each twice: BatchNorm needs more than one."""
    pair = example.take(torch.arange(min(2, len(example)), device=example.y.device))
    x, y = pair.x.repeat_interleave(2, dim=0), pair.y.repeat_interleave(2, dim=0)
    batch_loss(model.train(), x, y, loss=work.loss, precision=work.precision).backward()


def try_out(
    build: Callable[[Work], Executor], work: Work, example: Samples, *, batch: int = TRIAL_BATCH
) -> None:
    """Raise `Refused` unless the executor trains a few batches as the plain loop does."""
    size = min(batch, work.training.batch_size, max(1, len(example) // 2))
    small = replace(work, training=replace(work.training, batch_size=size, epochs=1))
    jobs = _jobs(small, example)
    expected = Loop(small).train(jobs)
    try:
        trained = build(small).train(jobs)
    except (Refused, torch.OutOfMemoryError):
        raise
    except Exception as error:
        told = describe_exception(error)
        raise Refused(f"it fails on this network ({told[:200]})") from error
    # Rounding alone can tip a ReLU or the choice of a maximum and change a step visibly, but not
    # in every job, and not by much.
    lowest, *others = sorted(
        _deviation(f, e, j.state) for f, e, j in zip(trained, expected, jobs, strict=True)
    )
    tolerance = TOLERANCE[work.precision]
    if not (lowest <= tolerance and all(off <= MAX_TIPPED_DEVIATION for off in others)):
        raise Refused(
            f"its steps differ from the plain loop's by {lowest:.2g} to "
            f"{max(lowest, *others):.2g} of their length; rounding explains {tolerance:g}, and "
            f"{MAX_TIPPED_DEVIATION:g} now and then"
        )


def _jobs(work: Work, example: Samples) -> list[Job]:
    """Return jobs of two and a half, one and a half, and one batch, as far as samples go."""
    size, state = work.training.batch_size, states.of(work.model)
    jobs = []
    for number, size_wanted in enumerate((5 * size // 2, 3 * size // 2, size)):
        count = min(len(example), size_wanted)
        if count > 1 and count % size == 1:
            count -= 1  # BatchNorm cannot normalise a batch of one
        indices = torch.arange(number * size, number * size + count, device=example.y.device)
        jobs.append(
            Job(
                state=state,
                samples=example.take(indices % len(example)),
                orders=(torch.arange(count).flip(0),),
                noise=number,
            )
        )
    return jobs


def _deviation(trained: State, expected: State, start: State) -> float:
    """Return the distance of `trained` from `expected`, as a share of the step's length."""
    step, deviation = 0.0, 0.0
    for name, value in expected.items():
        if not value.is_floating_point():
            if not torch.equal(trained[name], value):
                raise Refused(f"it counts {name!r} differently from the plain loop")
            continue
        step += _squared(value, start[name])
        deviation += _squared(trained[name], value)
    if deviation == 0:
        return 0.0
    return (deviation / step) ** 0.5 if step else float("inf")


def _squared(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).square().sum())


def _generators(device: torch.device) -> list[Tensor]:
    generators = [torch.get_rng_state()]
    if device.type == "cuda":
        generators.append(torch.cuda.get_rng_state(device))
    return generators
