"""Compare erasures with retraining, after as many rounds: a record, and the table of all cells.

What is in the record already is not measured again; trained models are kept beside it.

    python -m benchmarks.erasures --networks mlp --seeds 0 1 2
    python -m benchmarks.erasures --data digits --seeds 100 --only "take-back, removal"
    python -m benchmarks.erasures --record docs/records/erasures.jsonl.xz --seeds 100
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.erasures.candidates import ERASURES
from benchmarks.erasures.cells import SCENARIOS, SHARES, SOURCES, cells
from benchmarks.erasures.records import load, of_cells, run
from benchmarks.erasures.table import MODELS, summary, table

ROUNDS = 5  # the exchange included
FOLDER = Path("runs/erasures")


def main(argv: Sequence[str] | None = None) -> None:
    """Measure what is missing and print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", nargs="+", default=["mnist-10k"], choices=SOURCES)
    parser.add_argument("--networks", nargs="+", default=["small-cnn"])
    parser.add_argument("--scenarios", nargs="+", default=SCENARIOS, choices=SCENARIOS)
    parser.add_argument("--shares", nargs="+", type=float, default=SHARES)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--only", nargs="+", default=list(ERASURES), choices=ERASURES)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--record", type=Path, help="only print what this file holds")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    asked = parser.parse_args(argv)
    every = list(cells(asked.data, asked.networks, asked.scenarios, asked.shares, asked.seeds))
    if asked.record:
        lines = of_cells(load(asked.record), every)
    else:
        lines = run([*MODELS, *asked.only], every, asked.folder, asked.rounds)
    print(summary(lines), table(lines), sep="\n\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
