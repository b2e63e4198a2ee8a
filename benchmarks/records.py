"""Tables of the documentation, from the records beside it: told apart from them, or written anew.

A table stands between `<!-- paper: scores; Second choice; Weight negation -->`, which names the
records, the kind of table and its columns (all, if none), and `<!-- end -->`.

example: python -m benchmarks.records --write
"""

from __future__ import annotations

import argparse
import re
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from secede.experiments import presets
from secede.reports import compared, overview, paired
from secede.reports.figures import plots
from secede.reports.load import load_runs
from secede.reports.records import Run
from secede.reports.render import draw_plot
from secede.reports.table import markdown, markdown_rows

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "docs" / "records"
PAGES = tuple(
    ROOT / name for name in ("README.md", "docs/comparison.md", "docs/comparison-tables.md")
)

FIGURES = ("backdoor-methods-n5", "flipped-methods-n10")  # of the paper's cells, in docs/images

SHORT = {"EMNIST (47 classes, derived)": "EMNIST", "(tau ": "(τ "}

_BLOCK = re.compile(r"(<!-- ([a-z+]+): ([a-z]+)((?:; [^;]+?)*) -->\n).*?(<!-- end -->)", re.DOTALL)

Rows = list[tuple[str, ...]]


def written(text: str) -> str:
    """Return a page with each of its tables as the records say."""
    return _BLOCK.sub(
        lambda found: found[1] + _table(found[2], found[3], found[4]) + found[5], text
    )


def _table(records: str, kind: str, chosen: str) -> str:
    if kind not in KINDS:
        raise SystemExit(f"no table {kind!r}; expected one of: {', '.join(KINDS)}")
    runs = tuple(run for name in records.split("+") for run in load(name))
    text = KINDS[kind](runs, [name.strip() for name in chosen.split(";")[1:]])
    for long, short in SHORT.items():
        text = text.replace(long, short)
    return text.rstrip("\n") + "\n"


@cache
def load(name: str) -> tuple[Run, ...]:
    """Return the runs of the archive called `name`."""
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(RECORDS / f"{name}.tar.xz") as archive:
            archive.extractall(folder, filter="data")
        return tuple(load_runs([Path(folder) / name]).runs)


def _scores(runs: Sequence[Run], columns: Sequence[str]) -> str:
    return _columns(_rows(overview.against_retraining(runs))[0], columns)


def _worth(runs: Sequence[Run], columns: Sequence[str]) -> str:
    return _columns(_rows(overview.against_retraining(runs))[1], columns)


def _further(runs: Sequence[Run], columns: Sequence[str]) -> str:
    return _columns(_rows(paired.further(runs))[0], columns)


def _nearer(runs: Sequence[Run], others: Sequence[str]) -> str:
    heading, line, *rows = _rows(paired.nearer(runs))[0]
    return markdown_rows([heading, line, *_named(rows, others)])


def _cells(runs: Sequence[Run], columns: Sequence[str]) -> str:
    """Return a row an experiment: what is useful / what is left, before, retrained and after."""
    drawn = overview.overview(runs)
    assert drawn is not None
    table = dict(drawn.rows)
    rows = [
        (heading.title, *(table[column][number] for column in columns))
        for number, heading in enumerate(drawn.headings)
    ]
    return markdown_rows([("", *columns), ("---", *("---:" for _ in columns)), *rows])


def _every(runs: Sequence[Run], columns: Sequence[str]) -> str:
    """Return each experiment's methods with every score; all columns, whatever is chosen."""
    tables = ((run.config.title, compared.method_table(run)) for run in runs)
    return "\n".join(f"## {title}\n\n{markdown(table, 'Method')}" for title, table in tables)


KINDS: Mapping[str, Callable[[Sequence[Run], Sequence[str]], str]] = {
    "scores": _scores,
    "worth": _worth,
    "further": _further,
    "nearer": _nearer,
    "cells": _cells,
    "every": _every,
}


def _rows(text: str) -> list[Rows]:
    """Read the Markdown tables of a text."""
    found: list[Rows] = [[]]
    for line in text.splitlines():
        if line.startswith("|"):
            found[-1].append(tuple(cell.strip() for cell in line.strip().strip("|").split("|")))
        elif found[-1]:
            found.append([])
    return [rows for rows in found if rows]


def _columns(rows: Rows, chosen: Sequence[str]) -> str:
    """Return the chosen columns, without rows that have nothing in them."""
    names = rows[0][1:]
    kept = [0, *(1 + names.index(_known(name, names)) for name in chosen or names)]
    heading, line, *cut = (tuple(row[place] for place in kept) for row in rows)
    return markdown_rows([heading, line, *(row for row in cut if {*row[1:]} != {"–"})])


def _named(rows: Rows, chosen: Sequence[str]) -> Iterator[tuple[str, ...]]:
    by_name = {row[0]: row for row in rows}
    for name in chosen or by_name:
        yield by_name[_known(name, list(by_name))]


def _known(name: str, names: Sequence[str]) -> str:
    for long, short in SHORT.items():
        name = name.replace(short, long) if long.endswith(" ") else name
    if name not in names:
        raise SystemExit(f"nothing is called {name!r} there; expected one of: {', '.join(names)}")
    return name


def draw_figures() -> None:
    """Draw the pages' figures, with the methods of the suite `compare` alone."""
    shown = tuple(presets.load(f"compare/{presets.PAPER[0]}").methods)
    runs = [replace(run, config=replace(run.config, methods=shown)) for run in load("paper")]
    for plot in plots(runs):
        if plot.slug in FIGURES:
            (ROOT / "docs" / "images" / f"{plot.slug}.png").write_bytes(draw_plot(plot).png)


def main() -> None:
    """Say which pages differ from the records, or write them."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--write", action="store_true", help="write tables and figures anew")
    write = options.parse_args().write
    differing = 0
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        if (new := written(text)) != text:
            differing += 1
            print(f"{page.relative_to(ROOT)}: {'written anew' if write else 'differs'}")
            if write:
                page.write_text(new, encoding="utf-8")
    if write:
        draw_figures()
    raise SystemExit(1 if differing and not write else 0)


if __name__ == "__main__":
    main()
