"""All tables of docs/threats.md and docs/evidence.md: python -m benchmarks.threats

Each is measured in a process of its own and kept in a folder once it is finished; a second run
measures what is missing. `--check` says where the pages have other numbers.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path(__file__).parents[2]
DOCUMENT = _ROOT / "docs" / "threats.md"
EVIDENCE = _ROOT / "docs" / "evidence.md"  # the tables of canaries
# The modules, the quickest first, with what is known of their time on two cores.
TABLES: dict[str, str] = {
    "gate_margins": "seconds",
    "reconstruction": "a minute",
    "attacks": "some minutes",
    "trigger_shapes": "some minutes",
    "optimisers": "some minutes",
    "usefulness": "some minutes",
    "workflow_attacks": "some minutes",
    "honest_leavers": "some minutes",
    "canary_lies": "some minutes",
    "single_image": "a quarter of an hour",
    "canaries": "half an hour",
    "trigger_positions": "a quarter of an hour or more",
}
_SHOWN = 5  # rows that differ


@dataclass(frozen=True)
class Table:
    """A Markdown table: its columns, and its rows by their first cell and its place among such."""

    columns: tuple[str, ...]
    rows: Mapping[tuple[str, int], tuple[str, ...]]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what is missing, or list or compare; return an exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.threats", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=TABLES, metavar="NAME", help="these alone")
    parser.add_argument("--out", type=Path, default=_ROOT / "runs" / "threats", help="the folder")
    parser.add_argument("--force", action="store_true", help="measure finished ones again")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--list", action="store_true", help="the tables, and how long they take")
    what.add_argument("--check", action="store_true", help="compare with the pages")
    asked = parser.parse_args(argv)
    names = [name for name in TABLES if asked.only is None or name in asked.only]
    if asked.list:
        for name in names:
            print(f"{name:18} {expected(asked.out, name)}")
        return 0
    if asked.check:
        return check(asked.out, names)
    return measure(asked.out, names, force=asked.force)


def measure(folder: Path, names: Sequence[str], *, force: bool) -> int:
    """Measure the tables that are not finished; return 1 if one could not be measured."""
    folder.mkdir(parents=True, exist_ok=True)
    missing = [name for name in names if force or not (folder / f"{name}.md").exists()]
    for name in names:
        if name not in missing:
            say(f"{name}: finished before, {folder / name}.md; --force measures it again")
    failed = []
    for number, name in enumerate(missing, start=1):
        say(f"{name}: table {number} of {len(missing)}, {expected(folder, name)}")
        start = time.monotonic()
        part = folder / f".{name}.part"
        try:
            with part.open("w") as file:
                for line in run(name):
                    file.write(line)
                    print(line, end="", flush=True)
        except subprocess.CalledProcessError as error:
            failed.append(name)
            say(f"{name}: ended with {error.returncode}, is not kept")
            continue
        seconds = time.monotonic() - start
        (folder / f"{name}.seconds").write_text(f"{seconds:.0f}\n")
        part.replace(folder / f"{name}.md")
        say(f"{name}: finished in {seconds:.0f} s, {folder / name}.md")
    return 1 if failed else 0


def run(name: str) -> Iterator[str]:
    """Yield what a table's program prints; CalledProcessError if it ends with an error."""
    command = [sys.executable, "-m", f"benchmarks.threats.{name}"]
    with subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        yield from program.stdout
    if program.returncode:
        raise subprocess.CalledProcessError(program.returncode, command)


def expected(folder: Path, name: str) -> str:
    """Return how long a table takes: as it did here, else what is known."""
    try:
        return f"{float((folder / f'{name}.seconds').read_text()):.0f} s when it was last measured"
    except (OSError, ValueError):
        return f"{TABLES[name]} on two free cores"


def check(folder: Path, names: Sequence[str]) -> int:
    """Say where finished tables and the pages differ; return 1 if they do."""
    pages = (DOCUMENT.read_text(), EVIDENCE.read_text())
    documented, differ = [table for page in pages for table in parsed(page)], False
    for name in names:
        path = folder / f"{name}.md"
        if not path.exists():
            print(f"{name}: not measured yet")
            continue
        for table in parsed(path.read_text()):
            found = nearest(table, documented)
            if found is None:
                print(f"{name}: no page has a table of these columns: {table.columns}")
                differ = True
                continue
            lines = list(differences(table, found))
            differ = differ or bool(lines)
            title = f"{name}, {table.columns[0]!r}"
            print(f"{title}: {len(lines)} rows differ" if lines else f"{title}: as documented")
            for line in lines[:_SHOWN]:
                print(f"  {line}")
    return 1 if differ else 0


def parsed(text: str) -> Iterator[Table]:
    """Yield the Markdown tables of a text."""
    lines: list[tuple[str, ...]] = []
    for line in [*text.splitlines(), ""]:
        if line.startswith("|"):
            lines.append(tuple(cell.strip() for cell in line.strip().strip("|").split(" | ")))
            continue
        if len(lines) > 2:
            columns, _, *rows = lines
            firsts = [row[0] for row in rows]
            places = [firsts[:number].count(first) for number, first in enumerate(firsts)]
            keys = zip(firsts, places, strict=True)
            yield Table(columns, dict(zip(keys, rows, strict=True)))
        lines = []


def nearest(table: Table, documented: Sequence[Table]) -> Table | None:
    """Return the documented table of the same columns that has most of its rows."""
    same = [other for other in documented if other.columns == table.columns]
    return max(same, key=lambda other: len(other.rows.keys() & table.rows.keys()), default=None)


def differences(measured: Table, documented: Table) -> Iterator[str]:
    """Yield a line for each row that one of two tables has otherwise, or not."""
    for key in {**measured.rows, **documented.rows}:
        here, there = measured.rows.get(key), documented.rows.get(key)
        if here != there:
            yield f"measured {' | '.join(here or ('nothing',))}; documented " + (
                " | ".join(there or ("nothing",))
            )


def say(line: str) -> None:
    """Tell how it goes, apart from the tables."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
