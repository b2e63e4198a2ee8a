"""Choose an executor: the named one, or the fastest that can do the work.

The choice depends on the device, the model and the number of clients, never on measured time, so
the same experiment always gets the same executor.
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

MIN_STACKED_CLIENTS = 4  # stacking pays from this number on


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
    draws = trial.draws_random_numbers(work, example)
    if name == "cpu":
        return _cpu(work, example, draws)
    makers: dict[str, Callable[[Work], Executor]] = {
        "graphs": lambda w: Graphs(w, example, draws=draws),
        "fused": lambda w: Fused(w, example),
        "stacked": lambda w: Stacked(w, example, draws=draws),
    }
    # The fused kernels are compiled for one batch size; two sizes would take twice the time.
    batch = work.training.batch_size if name == "fused" else trial.BATCH
    trial.check(makers[name], work, example, batch=batch)
    return makers[name](work)


def _cpu(work: Work, example: Samples, draws: bool) -> Executor:
    """Return the CPU executor; channels last, unless the model relies on the usual layout."""
    has_images = any(p.ndim == 4 for p in work.model.parameters())
    if has_images:
        try:
            trial.check(lambda w: Cpu(w, draws=draws), work, example)
            return Cpu(work, draws=draws)
        except Refused:
            pass  # the model relies on the usual layout
    trial.check(lambda w: Cpu(w, draws=draws, channels_last=False), work, example)
    return Cpu(work, draws=draws, channels_last=False)
