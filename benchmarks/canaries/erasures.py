"""What canaries say at the end of whole erasures on the embedded demo, by seed.

Each home is what `secede federation init home demo` makes, and each erasure runs with the defaults
but for the method that is forced. Half an hour: python -m benchmarks.canaries.erasures
"""

from __future__ import annotations

import argparse
import logging
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.canaries.kept_rows import KeptRows, Row
from secede.erasure import (
    EraseOptions,
    Home,
    load_private_key,
    new_request,
    receive,
    sign_request,
)
from secede.erasure import erase as run_erasure
from secede.erasure.storage.journal import Journal
from secede.erasure.storage.progress import Progress
from secede.erasure.storage.transition_details import CanariesDetails, RoundDetails
from secede.experiments import presets
from secede.simulation.backend import SimulatedBackend
from secede.simulation.new_federation import create_federation

NOW = datetime(2026, 11, 15, 12, tzinfo=UTC)
LEAVER, SEEDS = "site-0", 10


CASES: Mapping[str, Mapping[str, Any]] = {
    "defaults": {},
    "`fine-tune` forced": {"methods": ("benchmarks.canaries.weak_methods:FineTuneAlone",)},
    "`reference` forced": {"methods": ("benchmarks.canaries.weak_methods:ReferenceAlone",)},
}
UNUSED = {
    f"{name}, `--keep-unused-weights`": {**options, "keep_unused_weights": True}
    for name, options in CASES.items()
}
ALL = {**CASES, **UNUSED}
HEADING = (
    "erasure",
    "p before",
    "a trace found on the first rung that was read",
    "rungs given up",
    "ends with no trace found",
    "rung that served",
    "looks",
    "rounds of the others",
)


def erased(founded: Home, folder: Path, options: Mapping[str, Any]) -> Row:
    """Erase the leaver from a copy of a home, and return how that went."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(founded.path, folder)
    home = Home(folder)
    (model,) = home.path.glob("models/*.safetensors")
    request = new_request(
        federation="north",
        client=LEAVER,
        trigger="objection",
        model=model.stem,
        server=home.server_id,
        now=NOW,
    )
    key = load_private_key(home.path / "sites" / f"{LEAVER}.key")
    number = receive(home, sign_request(request, key), NOW).id
    backend = SimulatedBackend(home)
    outcome = run_erasure(
        home,
        backend,
        number,
        key=home.server_key(),
        clock=lambda: NOW,
        options=EraseOptions(**options),
    )
    with Journal(home.journal, read_only=True) as journal:
        progress = Progress.read(journal, journal.entry(number))
    details = [transition.details for transition in progress.transitions]
    said = [each for each in details if isinstance(each, CanariesDetails) and each.look]
    before = progress.canaries_before
    return {
        "state": outcome.state,
        "rung": outcome.rung,
        "p": None if before is None else before.reading.counts().p_value,
        "looks": [each.verdict for each in said],
        "rungs": [each.look.rung for each in said if each.look],
        "p after": [each.look.after.reading.counts().p_value for each in said if each.look],
        "failed": [f"{each.rung}: {each.outcome}" for each in outcome.failures],
        "rounds": sum(isinstance(each, RoundDetails) for each in details),
    }


def home_of(seed: int, folder: Path) -> Home:
    """Return the demo's home, trained once for each seed."""
    path = folder / f"home-{seed}"
    if not (path / "federation.json").exists():
        shutil.rmtree(path, ignore_errors=True)
        create_federation(path, presets.load("demo"), name="north", seed=seed, now=NOW)
    return Home(path)


def measured(name: str, seed: int, folder: Path) -> Row:
    """Return what comes of one erasure of one home."""
    return erased(home_of(seed, folder), folder / "erased", ALL[name])


def cells(name: str, rows: Sequence[Row]) -> list[str]:
    """Return a line of the table."""
    count = len(rows)
    first = [
        any(
            verdict == "trace-found"
            for verdict, rung in zip(row["looks"], row["rungs"], strict=True)
            if rung == row["rungs"][0]
        )
        for row in rows
    ]
    clear = sum(row["looks"][-1] == "no-trace-found" for row in rows)
    failed = Counter(failure for row in rows for failure in row.get("failed", ()))
    served = Counter(row["rung"] for row in rows)
    before = [row["p"] for row in rows]
    return [
        name,
        f"{min(before):.0e} to {max(before):.0e}",
        f"{sum(first)} of {count}",
        ", ".join(f"{failure} ({times})" for failure, times in failed.items()),
        f"{clear} of {count}",
        ", ".join(f"{rung} {times}" for rung, times in served.items()),
        _span([len(row["looks"]) for row in rows]),
        _span([row["rounds"] for row in rows]),
    ]


def _span(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high}"


def lines(rows: KeptRows, folder: Path, names: Sequence[str], seeds: int) -> Iterator[str]:
    """Yield the table's lines, as they are measured."""
    logging.getLogger("secede").setLevel(logging.ERROR)
    yield f"| {' | '.join(HEADING)} |"
    yield "|" + "---|" * len(HEADING)
    for name in names:
        found = [
            rows.row(f"{name}/{seed}", partial(measured, name, seed, folder))
            for seed in range(seeds)
        ]
        yield f"| {' | '.join(cells(name, found))} |"


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(ALL))
    parser.add_argument("--out", type=Path, default=Path("runs/canaries"))
    asked = parser.parse_args(argv)
    rows = KeptRows(asked.out / "erasures.jsonl")
    for line in lines(rows, asked.out, asked.cases, asked.seeds):
        print(line, flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
