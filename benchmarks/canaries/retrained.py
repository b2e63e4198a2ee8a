"""How often the test finds a trace in models that never saw the client: the null, trained anew.

Each trial is a federation of its own: other initial weights, other clients, other canaries and
coins; four retained clients train and the fifth reads. At most that share may be found which the
level says. A quarter of an hour: python -m benchmarks.canaries.retrained
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import torch

from benchmarks.canaries.federations import CLIENTS, DATA, ROUNDS, Planted
from benchmarks.canaries.kept_rows import KeptRows, Row
from secede.audit import interval
from secede.canaries import CanaryOptions, read

TRIALS = 400
LEVELS = (0.01, 0.05, 0.1)
LEAVER = 0


def trial(name: str, seed: int, rounds: int) -> Row:
    """Return the p of a client's canaries in a model of the others."""
    planted = Planted(DATA[name](), seed, CanaryOptions())
    state = planted.trained(range(1, CLIENTS), rounds)
    reading = read(planted.engine.model(state), planted.canaries[LEAVER]).reading()
    return {"p": reading.p_value}


def cells(name: str, found: Sequence[float]) -> list[str]:
    """Return a line of the table: rejections at each level, with the exact 95 % interval."""
    rejected = [sum(p < level for p in found) for level in LEVELS]
    ends = [interval(count, len(found)) for count in rejected]
    shown = [
        f"{100 * count / len(found):.1f}% ({100 * low:.1f}% to {100 * high:.1f}%)"
        for count, (low, high) in zip(rejected, ends, strict=True)
    ]
    return [name, str(len(found)), *shown]


def lines(rows: KeptRows, names: Sequence[str], trials: int, rounds: int) -> Iterator[str]:
    """Yield the table's lines, as they are measured."""
    yield f"| data, network | retrainings | {' | '.join(f'p < {level:g}' for level in LEVELS)} |"
    yield "|" + "---|" * (2 + len(LEVELS))
    for name in names:
        found = [
            rows.row(f"{name}/{seed}/{rounds}", partial(trial, name, seed, rounds))["p"]
            for seed in range(trials)
        ]
        yield f"| {' | '.join(cells(name, found))} |"


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", nargs="+", default=["images, mlp"], choices=list(DATA))
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--out", type=Path, default=Path("runs/canaries/retrained.jsonl"))
    asked = parser.parse_args(argv)
    for line in lines(KeptRows(asked.out), asked.data, asked.trials, asked.rounds):
        print(line, flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
