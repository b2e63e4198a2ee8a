"""Many federations side by side, as seeds of one experiment run, against one after another.

Side by side they run in lanes that share an executor, each dealt its own order of the same
images; dealing and building count. One after another is not run to the end: a few rounds are
timed before and a few after, and multiplied by the number of rounds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import torch

from benchmarks import command
from benchmarks.authors import Authors
from benchmarks.command import Setting
from benchmarks.federation import (
    LOOP,
    TRAINING,
    Rounds,
    paper_cnn,
    random_images,
    refusal,
    simulator,
    split,
    start_afresh,
)
from benchmarks.table import significant, table, times
from benchmarks.timing import Timing, interleaved
from secede.data.samples import Samples
from secede.errors import ConfigError
from secede.experiments.parallel import lane_count, run_jobs
from secede.federation.executors.choose import Choice
from secede.federation.simulator import Simulator

AUTHORS = "authors' loop"


def main(argv: Sequence[str] | None = None) -> None:
    """Run all federations by each executor; time a few rounds of the loops around that."""
    parser = command.parser("federations", __doc__, "--device cuda --count 192 --precision tf32")
    parser.add_argument("--count", type=command.positive, metavar="N", help="of federations")
    parser.add_argument("--clients", type=command.positive, default=5, metavar="N")
    parser.add_argument("--rounds", type=command.positive, metavar="N", help="of each; default: 10")
    parser.add_argument("--lanes", type=command.positive, metavar="N", help="side by side")
    setting, options = command.settle(parser, argv, executors=("auto",))
    count = options.count or setting.pick(quick=2, cpu=4, cuda=192)
    rounds = options.rounds or setting.pick(quick=2, cpu=10, cuda=10)
    lanes = lane_count(count, setting.device, options.lanes)
    size = options.images or setting.pick(quick=100, cpu=600, cuda=60_000)
    images = random_images(size)

    before = one_after_another(setting, images, options.clients)
    timings, refused = dict[str, Timing](), dict[str, str]()
    for name in setting.executors:
        command.say(f"{count} federations of {rounds} rounds by {name}, in {lanes} lanes")
        fleet = Fleet(setting, name, images.to(setting.device), options.clients)
        try:
            seconds = fleet.run(count, rounds, lanes)
        except ConfigError as error:
            refused[name] = refusal(error)
        else:
            timings[f"{fleet.title}, {lanes} lanes"] = Timing((seconds,))
    after = one_after_another(setting, images, options.clients)

    loops = {name: Timing(before[name].seconds + after[name].seconds) for name in before}
    whole = {
        f"{name}, one after another ({len(t.seconds)} rounds timed, multiplied)": t.median
        for name, t in loops.items()
    }
    whole = {name: count * rounds * seconds for name, seconds in whole.items()}
    authors, plain = whole.values()
    whole |= {name: timing.median for name, timing in timings.items()}
    rows = [
        [
            name,
            significant(seconds / 60),
            significant(count * rounds / seconds),
            times(authors / seconds),
            times(plain / seconds),
        ]
        for name, seconds in whole.items()
    ]
    rows += [[name, why] for name, why in refused.items()]
    title = f"{count} federations, {options.clients} clients, {size} images, {rounds} rounds"
    columns = (title, "minutes", "rounds/s", "against authors", "against plain loop")
    command.publish(setting, [table(columns, rows)], {**loops, **timings})


def one_after_another(setting: Setting, images: Samples, clients: int) -> dict[str, Timing]:
    """Return what single rounds of the loops take."""
    command.say("timing single rounds of the loops")
    start_afresh(setting.device)
    dealt = split(images, clients)
    engine = simulator(setting, "loop", dealt)
    contenders: dict[str, Callable[[], object]] = {
        AUTHORS: Authors(
            dealt,
            paper_cnn(),
            training=TRAINING,
            device=setting.device,
            precision=setting.precision,
        ),
        LOOP: Rounds(engine),
    }
    return interleaved(contenders, (setting.repeats + 1) // 2, device=setting.device)


class Fleet:
    """Federations that share one executor and take their turns in lanes."""

    def __init__(self, setting: Setting, executor: str, images: Samples, clients: int) -> None:
        self._setting, self._executor = setting, executor
        self._images, self._clients = images, clients
        self._choice: Choice | None = None
        self._building = threading.Lock()

    @property
    def title(self) -> str:
        """The executor, and what 'auto' picked."""
        picked = "" if self._choice is None else self._choice.name
        return self._executor if picked == self._executor else f"{self._executor} ({picked})"

    def run(self, count: int, rounds: int, lanes: int) -> float:
        """Run so many federations and return the seconds; each lane warms up first."""
        start_afresh(self._setting.device)
        self._build(0)  # an executor that refuses does so here, not in a lane
        self._take(range(lanes), 1, lanes)
        started = time.perf_counter()
        self._take(range(count), rounds, lanes)
        return time.perf_counter() - started

    def _take(self, seeds: Sequence[int], rounds: int, lanes: int) -> None:
        def turn(seed: int, stop: threading.Event) -> None:
            federation = Rounds(self._build(seed))
            for _ in range(rounds):
                federation()

        run_jobs(seeds, turn, lanes=lanes, device=self._setting.device)
        if self._setting.device == "cuda":
            torch.cuda.synchronize()

    def _build(self, seed: int) -> Simulator:
        draw = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(self._images), generator=draw).to(self._setting.device)
        clients = split(self._images.take(order), self._clients)
        with self._building:
            engine = Simulator(
                clients,
                paper_cnn,
                training=TRAINING,
                seed=seed,
                device=self._setting.device,
                executor=self._choice or self._executor,
                precision=self._setting.precision,
            )
            self._choice = engine.choice
        return engine


if __name__ == "__main__":
    main()
