"""Picks an executor: the one that was named, or the fastest that can do the work.

The rule looks at device, network and number of clients, never at a stop-watch, so that the same
experiment always picks the same one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from secede.data.samples import Samples
from secede.errors import ConfigError
from secede.federation.executors import AUTO, check_name, trial
from secede.federation.executors.cpu import Cpu
from secede.federation.executors.executor import Executor, Refused, Work
from secede.federation.executors.fused.executor import Fused
from secede.federation.executors.graphs import Graphs
from secede.federation.executors.loop import Loop
from secede.federation.executors.stacked import Stacked

MINIMUM_STACKED = 4  # clients from which stacking pays


@dataclass(frozen=True)
class Choice:
    """An executor and, where others were asked first, why they were passed over."""

    executor: Executor
    note: str = ""

    @property
    def name(self) -> str:
        """The executor's name, as records hold it."""
        return self.executor.name


def choose(name: str, work: Work, example: Samples, *, clients: int) -> Choice:
    """Return the executor called `name`; for 'auto' the first that does not refuse the work.

    `example` are some of the federation's samples, to try executors on.
    """
    check_name(name)
    refusals: list[str] = []
    for candidate in _candidates(work, clients) if name == AUTO else (name,):
        try:
            return Choice(_build(candidate, work, example), "; ".join(refusals))
        except Refused as why:
            if name != AUTO:
                raise ConfigError(
                    f"executor {name!r} cannot run this federation: {why}; 'auto' finds another"
                ) from why
            refusals.append(f"not {candidate}: {why}")
    raise AssertionError("the plain loop refuses nothing")


def _candidates(work: Work, clients: int) -> tuple[str, ...]:
    if work.device.type != "cuda":
        return ("cpu", "loop")
    if any(isinstance(m, nn.modules.conv._ConvNd) for m in work.model.modules()):
        return ("fused", "graphs", "loop")
    if clients >= MINIMUM_STACKED:
        return ("stacked", "graphs", "loop")
    return ("graphs", "loop")


def _build(name: str, work: Work, example: Samples) -> Executor:
    if name == "loop":
        return Loop(work)
    draws = trial.draws_random_numbers(work, example)
    if name == "cpu":
        return _cpu(work, example, draws)
    makers: dict[str, Callable[[Work], Executor]] = {
        "graphs": lambda w: Graphs(w, example, draws=draws),
        "fused": lambda w: Fused(w, example),
        "stacked": lambda w: Stacked(w, example, draws=draws),
    }
    # The fused kernels are compiled for a batch size; two sizes would take twice the time.
    batch = work.training.batch_size if name == "fused" else trial.BATCH
    trial.check(makers[name], work, example, batch=batch)
    return makers[name](work)


def _cpu(work: Work, example: Samples, draws: bool) -> Executor:
    """Return the CPU executor, in the usual layout where the network relies on that."""
    laid_out = any(p.ndim == 4 for p in work.model.parameters())
    if laid_out:
        try:
            trial.check(lambda w: Cpu(w, draws=draws), work, example)
            return Cpu(work, draws=draws)
        except Refused:
            pass  # the network relies on the usual layout
    trial.check(lambda w: Cpu(w, draws=draws, channels_last=False), work, example)
    return Cpu(work, draws=draws, channels_last=False)
