"""Erasing a client (local step, then one post-training round) against retraining without it.

The local step climbs all its epochs unless --stop-distance ends it: the longest it can take.
Retraining is timed on a few rounds and multiplied.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks import command
from benchmarks.federation import LOOP, Rounds, random_images, simulators, split
from benchmarks.table import milliseconds, table, times
from benchmarks.timing import Timing, interleaved
from secede.federation.engine import Cost, aggregate
from secede.federation.simulator import Simulator
from secede.unlearning.method import LocalTask
from secede.unlearning.methods.projected_ascent import ProjectedAscent

LEAVER = 0
NEVER = 1e6  # a distance that no step gets to
STEP, POST, RETRAIN = "local step", "post-training round", "retraining"


class Erasure:
    """A trained federation whose first client leaves, and the two ways to go on without it."""

    def __init__(self, engine: Simulator, how: ProjectedAscent, trained: int, timed: int) -> None:
        rounds = Rounds(engine)
        for _ in range(trained):
            rounds()
        self._engine, self._how, self._timed = engine, how, timed
        self._global = rounds.state
        self._unlearned = rounds.state
        self._retained = range(1, len(engine.clients))
        self.steps = 0
        self.costs: dict[str, Cost] = {}

    def local_step(self) -> None:
        """Let the leaver unlearn."""
        result, self.costs[STEP] = self._engine.ask(
            LEAVER,
            lambda side: self._how.unlearn(LocalTask.of(side)),
            global_state=self._global,
        )
        self._unlearned, self.steps = dict(result.state), result.report.steps

    def post_training(self) -> None:
        """Let the retained clients train one round from what the leaver sent."""
        reply = self._engine.train_round(
            self._unlearned, self._retained, phase="post-training", number=1
        )
        aggregate(reply.updates)
        self.costs[POST] = reply.cost

    def retraining(self) -> None:
        """Let the retained clients train a few rounds from a fresh start."""
        state, self.costs[RETRAIN] = self._engine.initial_state("retraining"), Cost()
        for number in range(1, self._timed + 1):
            reply = self._engine.train_round(
                state, self._retained, phase="retraining", number=number
            )
            state = aggregate(reply.updates)
            self.costs[RETRAIN] += reply.cost


def main(argv: Sequence[str] | None = None) -> None:
    """Time both ways by each executor, and count what they cost."""
    parser = command.parser("erase", __doc__, "--clients 5 --rounds 20")
    parser.add_argument("--clients", type=command.positive, default=5, metavar="N")
    parser.add_argument(
        "--rounds", type=command.positive, default=20, metavar="N", help="of retraining"
    )
    parser.add_argument("--timed", type=command.positive, metavar="N", help="of them, measured")
    parser.add_argument("--stop-distance", type=float, default=NEVER, metavar="TAU")
    setting, options = command.settle(parser, argv)
    if options.clients < 2:
        parser.error("--clients must be at least 2: someone must stay")
    timed = options.timed or setting.pick(quick=1, cpu=1, cuda=3)
    how = ProjectedAscent(stop_distance=options.stop_distance)
    engines, refused = simulators(setting, split(random_images(setting.images), options.clients))
    command.say(f"training {len(engines)} federations of {options.clients} clients")
    erasures = {name: Erasure(engine, how, 2, timed) for name, engine in engines.items()}
    contenders: dict[str, Callable[[], object]] = {}
    for name, erasure in erasures.items():
        contenders[f"{name}, {STEP}"] = erasure.local_step
        contenders[f"{name}, {POST}"] = erasure.post_training
        contenders[f"{name}, {RETRAIN}"] = erasure.retraining
    command.say("timing")
    timings = interleaved(contenders, setting.repeats, device=setting.device)
    for name in erasures:
        timings[f"{name}, {RETRAIN}"] *= options.rounds / timed
    erasure = erasures[LOOP]
    tables = [
        _seconds_table(list(erasures), refused, timings, options.rounds, timed),
        _cost_table(erasure, options.rounds / timed, options.rounds),
    ]
    command.publish(setting, tables, timings)


def _seconds_table(
    names: Sequence[str],
    refused: dict[str, str],
    timings: dict[str, Timing],
    rounds: int,
    timed: int,
) -> str:
    columns = (
        "",
        "local step, ms",
        "post-training round, ms",
        "both, ms",
        f"retraining {rounds} rounds, ms ({timed} timed, multiplied)",
        "both against retraining",
        "against plain loop's retraining",
    )
    rows: list[list[str]] = []
    for name in names:
        step, post = timings[f"{name}, {STEP}"], timings[f"{name}, {POST}"]
        retraining, both = timings[f"{name}, {RETRAIN}"], step + post
        rows.append(
            [
                name,
                milliseconds(step),
                milliseconds(post),
                milliseconds(both),
                milliseconds(retraining),
                times(both.times_faster_than(retraining)),
                times(both.times_faster_than(timings[f"{LOOP}, {RETRAIN}"])),
            ]
        )
    return table(columns, [*rows, *([name, why] for name, why in refused.items())])


def _cost_table(erasure: Erasure, factor: float, rounds: int) -> str:
    erasing = erasure.costs[STEP] + erasure.costs[POST]
    retraining = erasure.costs[RETRAIN]
    counted = (
        ("gradient samples", erasing.gradient_samples, retraining.gradient_samples),
        ("upload bytes", erasing.upload_bytes, retraining.upload_bytes),
        ("download bytes", erasing.download_bytes, retraining.download_bytes),
    )
    return table(
        ("counted", f"erasing ({erasure.steps} local steps)", f"retraining ({rounds} rounds)", ""),
        [
            [name, f"{mine:,}", f"{factor * other:,.0f}", times(factor * other / mine)]
            for name, mine, other in counted
        ],
    )


if __name__ == "__main__":
    main()
