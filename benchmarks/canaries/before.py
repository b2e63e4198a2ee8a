"""What canaries show in the model from before an erasure, and what they cost in accuracy.

Federations of five clients with 1,500 samples, ten rounds; all clients plant. Accuracy is compared
with that of the same federation without canaries. Half an hour or more:
python -m benchmarks.canaries.before
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import torch

from benchmarks.canaries.federations import DATA, ROUNDS, Planted
from benchmarks.canaries.kept_rows import KeptRows, Row
from secede.canaries import CanaryOptions, read
from secede.reports.analysis.estimates import mean_over_seeds

SIZES = {  # canaries and copies of each, by kind of data
    name: ((10, 3), (16, 3)) if name.startswith("images") else ((10, 3), (32, 3)) for name in DATA
}
SEEDS = 10
TINY = 1e-6
HEADING = (
    "data, network",
    "canaries × copies",
    "share of samples",
    "clients with p < 1e-6",
    "with p < 0.01",
    "largest p",
    "accuracy without canaries",
    "cost in points, 95 % interval",
)


def measured(name: str, seed: int, size: tuple[int, int] | None, rounds: int) -> Row:
    """Return the accuracy of a trained federation, and each client's p."""
    options = CanaryOptions(count=size[0], copies=size[1], max_share=0.1) if size else None
    planted = Planted(DATA[name](), seed, options)
    state = planted.trained(rounds=rounds)
    model = planted.engine.model(state)
    found = [read(model, each).reading().p_value for each in planted.canaries]
    return {"accuracy": planted.accuracy(state), "p": found}


def cells(name: str, size: tuple[int, int], plain: Sequence[Row], rows: Sequence[Row]) -> list[str]:
    """Return a line of the table."""
    found = [p for row in rows for p in row["p"]]
    pairs = zip(plain, rows, strict=True)
    cost = mean_over_seeds([100 * (one["accuracy"] - two["accuracy"]) for one, two in pairs])
    ends = f" ({cost.low:+.2f} to {cost.high:+.2f})" if cost.interval else ""
    before = mean_over_seeds([row["accuracy"] for row in plain])
    return [
        name,
        f"{size[0]} × {size[1]}",
        f"{100 * size[0] * size[1] / 1500:.1f}%",
        f"{sum(p < TINY for p in found)} of {len(found)}",
        f"{sum(p < 0.01 for p in found)} of {len(found)}",
        f"{max(found):.1g}",
        f"{100 * before.mean:.1f}%",
        f"{cost.mean:+.2f}{ends}",
    ]


def sizes_of(name: str, most: bool) -> tuple[tuple[int, int], ...]:
    """Return the sizes to measure; with `most`, the last one alone."""
    return SIZES[name][-1:] if most else SIZES[name]


def lines(
    rows: KeptRows, names: Sequence[str], seeds: int, rounds: int, most: bool = False
) -> Iterator[str]:
    """Yield the table's lines, as they are measured."""
    yield f"| {' | '.join(HEADING)} |"
    yield "|" + "---|" * len(HEADING)
    for name in names:
        plain = all_seeds(rows, name, None, seeds, rounds)
        for size in sizes_of(name, most):
            found = all_seeds(rows, name, size, seeds, rounds)
            yield f"| {' | '.join(cells(name, size, plain, found))} |"


def all_seeds(
    rows: KeptRows, name: str, size: tuple[int, int] | None, seeds: int, rounds: int
) -> list[Row]:
    """Return what was measured with so many canaries, one row a seed."""
    return [
        rows.row(f"{name}/{size}/{seed}/{rounds}", partial(measured, name, seed, size, rounds))
        for seed in range(seeds)
    ]


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", nargs="+", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--most", action="store_true", help="the most canaries alone")
    parser.add_argument("--out", type=Path, default=Path("runs/canaries/before.jsonl"))
    asked = parser.parse_args(argv)
    for line in lines(KeptRows(asked.out), asked.data, asked.seeds, asked.rounds, asked.most):
        print(line, flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
