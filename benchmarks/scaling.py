"""How a round's time and memory grow with clients, samples and parameters.

Memory is the peak of a round with one federation alive: on a GPU what torch allocated, on a CPU
the whole process. Time is measured after that, against the plain loop.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from benchmarks import command, memory
from benchmarks.command import Setting
from benchmarks.federation import (
    CLASSES,
    LOOP,
    SHAPE,
    Rounds,
    random_images,
    refusal,
    simulator,
    simulators,
    split,
    start_afresh,
)
from benchmarks.table import brief, milliseconds, significant, table, times
from benchmarks.timing import Timing, interleaved
from secede import models
from secede.errors import ConfigError

COLUMNS = ("clients", "samples each", "parameters", "", "ms a round", "against plain loop", "MiB")
PARTS = ("clients", "samples", "parameters")


@dataclass(frozen=True)
class Case:
    """One point of a curve."""

    clients: int
    each: int  # samples of a client
    make_model: Callable[[], nn.Module]

    @property
    def parameters(self) -> int:
        """How many parameters its network has."""
        with torch.device("meta"):
            return sum(p.numel() for p in self.make_model().parameters())

    def __str__(self) -> str:
        return f"{self.clients} clients, {self.each} samples each, {self.parameters} parameters"


def main(argv: Sequence[str] | None = None) -> None:
    """Time the points of each curve."""
    parser = command.parser("scaling", __doc__, "--parts clients,parameters --executors auto")
    parser.add_argument(
        "--parts", type=_parts, default=PARTS, metavar="A,B", help=f"of {', '.join(PARTS)}"
    )
    parser.add_argument("--model", choices=models.NAMES, help="of the curves over clients, samples")
    setting, options = command.settle(parser, argv, executors=("auto",))
    setting = replace(setting, repeats=options.repeats or setting.pick(quick=1, cpu=2, cuda=3))
    name = options.model or setting.pick(quick="mlp", cpu="mlp", cuda="paper-cnn")
    tables, timings = list[str](), dict[str, Timing]()
    for part in options.parts:
        rows: list[list[str]] = []
        for case in cases(part, setting, name):
            found, more = measure(setting, case)
            command.say(f"{case}: {brief(found)}")
            timings |= {f"{case}, {executor}": timing for executor, timing in found.items()}
            rows += more
        tables.append(f"### {part}: {'perceptron' if part == 'parameters' else name}\n")
        tables[-1] += "\n" + table(COLUMNS, rows)
    command.publish(setting, tables, timings)


def cases(part: str, setting: Setting, name: str) -> Iterator[Case]:
    """Yield the points of one curve."""

    def network() -> nn.Module:
        return models.build(name, shape=SHAPE, classes=CLASSES)

    total = setting.images
    if part == "clients":
        counts = setting.pick(quick=(1, 4), cpu=(1, 10, 100, 1000), cuda=(1, 10, 100, 1000))
        few = setting.pick(quick=4, cpu=12, cuda=60)
        yield from (Case(count, total // count, network) for count in counts)
        yield from (Case(count, few, network) for count in counts)
    elif part == "samples":
        count = setting.pick(quick=2, cpu=10, cuda=10)
        shares = setting.pick(quick=(2, 1), cpu=(8, 4, 2, 1), cuda=(8, 4, 2, 1))
        yield from (Case(count, total // (count * share), network) for share in shares)
    else:
        most = setting.pick(quick=5, cpu=8, cuda=8)
        for power in range(5, most + 1):
            yield Case(2, setting.pick(quick=8, cpu=128, cuda=1280), perceptron(10**power))


def perceptron(parameters: int) -> Callable[[], nn.Module]:
    """Return what builds two hidden layers, as wide as about so many parameters allow."""
    ends = math.prod(SHAPE) + CLASSES + 2
    width = round((math.sqrt(ends**2 + 4 * parameters) - ends) / 2)

    def build() -> nn.Module:
        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(math.prod(SHAPE), width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, CLASSES),
        )

    return build


def measure(setting: Setting, case: Case) -> tuple[dict[str, Timing], list[list[str]]]:
    """Return what a round takes by each executor, and the rows of the table."""
    point = [str(case.clients), str(case.each), f"{case.parameters:,}"]
    peaks, refused = dict[str, int](), dict[str, str]()
    for name in ("loop", *setting.executors):
        try:
            peaks[name] = _peak(setting, case, name)
        except ConfigError as error:
            refused[name] = refusal(error)
    clients = split(random_images(case.clients * case.each), case.clients)
    engines, _ = simulators(setting, clients, case.make_model)
    contenders = {name: Rounds(engine) for name, engine in engines.items()}
    found = interleaved(contenders, setting.repeats, device=setting.device)
    rows = [
        [
            *point,
            name,
            milliseconds(timing),
            times(timing.times_faster_than(found[LOOP])),
            significant(peak / 2**20),
        ]
        for (name, timing), peak in zip(found.items(), peaks.values(), strict=True)
    ]
    return found, rows + [[*point, name, why] for name, why in refused.items()]


def _peak(setting: Setting, case: Case, executor: str) -> int:
    """Return the peak of a round by one executor, with no other federation alive."""
    start_afresh(setting.device)
    memory.restart(setting.device)
    clients = split(random_images(case.clients * case.each), case.clients)
    Rounds(simulator(setting, executor, clients, case.make_model))()
    return memory.peak_bytes(setting.device)


def _parts(text: str) -> tuple[str, ...]:
    parts = tuple(text.split(","))
    if unknown := set(parts) - set(PARTS):
        raise argparse.ArgumentTypeError(
            f"unknown {', '.join(sorted(unknown))}; expected some of {', '.join(PARTS)}"
        )
    return parts


if __name__ == "__main__":
    main()
