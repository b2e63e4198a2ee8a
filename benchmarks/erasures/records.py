"""The records of the comparison: one JSON line for each cell and method; what is there stays."""

from __future__ import annotations

import json
import lzma
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path

from benchmarks.erasures.candidates import ERASURES
from benchmarks.erasures.cells import Cell
from benchmarks.erasures.models import Trained, trained
from benchmarks.erasures.scores import measure
from benchmarks.erasures.table import MODELS
from secede.state import State

Line = dict[str, object]


def run(wanted: Sequence[str], every: Sequence[Cell], folder: Path, rounds: int) -> list[Line]:
    """Measure what is missing in the folder; return all lines of the cells."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"scores-{rounds}.jsonl"
    done = {_key(line): line for line in load(file)}
    asked = [(cell, name) for cell in every for name in wanted]
    for cell in every:
        missing = [name for name in wanted if (*asdict(cell).values(), name) not in done]
        for line in _measured(cell, missing, folder, rounds) if missing else ():
            done[_key(line)] = line
            with file.open("a", encoding="utf-8") as opened:
                opened.write(json.dumps(line) + "\n")
    return [done[(*asdict(cell).values(), name)] for cell, name in asked]


def load(file: Path) -> list[Line]:
    """Return the lines of a file, which may be packed as .xz; none if it is not there."""
    if not file.is_file():
        return []
    content = file.read_bytes()
    if file.suffix == ".xz":
        content = lzma.decompress(content)
    return [json.loads(line) for line in content.decode().splitlines()]


def of_cells(lines: Iterable[Line], every: Sequence[Cell]) -> list[Line]:
    """Return the lines of these cells."""
    wanted = {tuple(asdict(cell).values()) for cell in every}
    return [line for line in lines if _key(line)[:-1] in wanted]


def _key(line: Line) -> tuple[object, ...]:
    return tuple(line[name] for name in ("data", "network", "scenario", "share", "seed", "method"))


def _measured(cell: Cell, wanted: Sequence[str], folder: Path, rounds: int) -> Iterator[Line]:
    """Yield the scores of a cell's models and erasures.

    Membership is told by the losses of the model that was retrained again; for that one, by those
    of the retrained.
    """
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


def _state(here: Trained, name: str, rounds: int) -> State:
    """Return a trained model by name, or what an erasure makes of the original in `rounds`."""
    if name in MODELS:
        state: State = getattr(here, name)
        return state
    return next(islice(ERASURES[name](here), rounds - 1, None))
