"""One FedAvg round: the authors' loop, the plain loop on resident data, and the executors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from benchmarks import command
from benchmarks.authors import Authors
from benchmarks.command import Setting
from benchmarks.federation import (
    LOOP,
    TRAINING,
    Rounds,
    paper_cnn,
    random_images,
    simulators,
    split,
)
from benchmarks.table import brief, milliseconds, quartiles, table, times
from benchmarks.timing import Timing, interleaved

AUTHORS = "authors' loop (DataLoader)"
COLUMNS = ("clients", "", "ms a round", "quartiles", "against authors", "against plain loop")


def main(argv: Sequence[str] | None = None) -> None:
    """Time a round with each number of clients."""
    parser = command.parser(
        "round", __doc__, "--device cuda --precision tf32 --executors fused,graphs"
    )
    parser.add_argument(
        "--clients", type=command.positives, metavar="N,M", help="default: 1,5,10,50"
    )
    setting, options = command.settle(parser, argv)
    counts = options.clients or setting.pick(quick=(1, 2), cpu=(1, 5, 10, 50), cuda=(1, 5, 10, 50))
    rows, timings = list[list[str]](), dict[str, Timing]()
    for count in counts:
        found, refused = measure(setting, count)
        command.say(f"{count} clients, {setting.images} images in all: {brief(found)}")
        timings |= {f"{count} clients, {name}": timing for name, timing in found.items()}
        for name, timing in found.items():
            rows.append(
                [
                    str(count),
                    name,
                    milliseconds(timing),
                    quartiles(timing),
                    times(timing.times_faster_than(found[AUTHORS])),
                    times(timing.times_faster_than(found[LOOP])),
                ]
            )
        rows += [[str(count), name, why] for name, why in refused.items()]
    command.publish(setting, [table(COLUMNS, rows)], timings)


def measure(setting: Setting, count: int) -> tuple[dict[str, Timing], dict[str, str]]:
    """Return what a round of `count` clients takes each contender, and who refused."""
    clients = split(random_images(setting.images), count)
    engines, refused = simulators(setting, clients)
    contenders: dict[str, Callable[[], object]] = {
        AUTHORS: Authors(
            clients,
            paper_cnn(),
            training=TRAINING,
            device=setting.device,
            precision=setting.precision,
        )
    }
    contenders |= {name: Rounds(engine) for name, engine in engines.items()}
    return interleaved(contenders, setting.repeats, device=setting.device), refused


if __name__ == "__main__":
    main()
