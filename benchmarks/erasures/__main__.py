"""Compare erasures with retraining: one JSON line for each cell and method, then the table.

What is in the file already is not measured again; trained models are kept beside it.

    python -m benchmarks.erasures --seeds 0 1 2 --only "take back" "second choice, removal"
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path

import torch

from benchmarks.erasures.candidates import ERASURES
from benchmarks.erasures.cells import SCENARIOS, SHARES, SOURCES, Cell, cells
from benchmarks.erasures.models import Trained, trained
from benchmarks.erasures.scores import measure
from benchmarks.erasures.table import MODELS, table

ROUNDS = 5
FOLDER = Path("runs/erasures")


def lines(
    cell: Cell, wanted: Sequence[str], folder: Path, rounds: int
) -> Iterator[dict[str, object]]:
    """Yield the scores of a cell's models and erasures."""
    here = trained(cell, folder / "models")
    made = here.federation
    _, retrained = measure(made, here.retrained, None)
    _, again = measure(made, here.again, None)
    for name in wanted:
        started = time.perf_counter()
        state = _state(here, name, rounds)
        scores, _ = measure(made, state, retrained if name == "again" else again)
        seconds = round(time.perf_counter() - started, 2)
        yield {**asdict(cell), "method": name, **asdict(scores), "seconds": seconds}


def _state(here: Trained, name: str, rounds: int) -> dict[str, torch.Tensor]:
    if name in MODELS:
        return dict(getattr(here, name))
    return dict(next(islice(ERASURES[name](here), rounds - 1, None)))


def _key(line: dict[str, object]) -> tuple[object, ...]:
    return tuple(line[name] for name in ("data", "network", "scenario", "share", "seed", "method"))


def load(file: Path) -> list[dict[str, object]]:
    """Return the lines of a file; none if it is not there."""
    if not file.is_file():
        return []
    return [json.loads(line) for line in file.read_text().splitlines()]


def run(
    wanted: Sequence[str], every: Sequence[Cell], folder: Path, rounds: int = ROUNDS
) -> list[dict[str, object]]:
    """Measure what is missing; return all lines of the cells."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"scores-{rounds}.jsonl"
    done = {_key(line): line for line in load(file)}
    for cell in every:
        missing = [n for n in wanted if (*asdict(cell).values(), n) not in done]
        for line in lines(cell, missing, folder, rounds) if missing else ():
            done[_key(line)] = line
            with file.open("a") as opened:
                opened.write(json.dumps(line) + "\n")
    chosen = {(*asdict(cell).values(), name) for cell in every for name in wanted}
    return [line for key, line in done.items() if key in chosen]


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", nargs="+", default=["mnist-10k"], choices=SOURCES)
    parser.add_argument("--networks", nargs="+", default=["small-cnn"])
    parser.add_argument("--scenarios", nargs="+", default=SCENARIOS, choices=SCENARIOS)
    parser.add_argument("--shares", nargs="+", type=float, default=SHARES)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--only", nargs="+", default=list(ERASURES), choices=ERASURES)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    asked = parser.parse_args(argv)
    every = list(cells(asked.data, asked.networks, asked.scenarios, asked.shares, asked.seeds))
    found = run([*MODELS, *asked.only], every, asked.folder, asked.rounds)
    print(table(found))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
