"""The comparison's tables are what a report on the committed records says, cell by cell."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from secede.reports import overview, paired
from secede.reports.load import load_runs
from secede.reports.page import sections
from secede.reports.table import markdown

DOCS = Path(__file__).parents[1] / "docs"

PARTS = ("global", "every", "own", "sunk", "steady", "whole")  # each is left out in one variant

Cells = dict[tuple[str, str], str]  # what stands under a column in a row


def tables(text: str) -> list[Cells]:
    """Read the Markdown tables of a text."""
    found: list[list[list[str]]] = [[]]
    for line in text.splitlines():
        if line.startswith("|"):
            found[-1].append([cell.strip() for cell in line.strip().strip("|").split("|")])
        elif found[-1]:
            found.append([])
    return [dict(_cells(rows)) for rows in found if rows]


def _cells(rows: list[list[str]]) -> Iterator[tuple[tuple[str, str], str]]:
    columns, _, *lines = rows
    for name, *values in lines:
        for column, value in zip(columns[1:], values, strict=True):
            yield (name, column), value


def section(file: str, begin: str) -> str:
    """Return what stands below a heading of a page, up to the next of its level."""
    heading = f"\n{begin}\n"
    text = (DOCS / file).read_text(encoding="utf-8").split(heading)[1]
    return text.split(f"\n{begin.split()[0]} ")[0]


@pytest.fixture(scope="module")
def natural(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("records")
    with tarfile.open(DOCS / "records" / "natural.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder / "natural"


def test_leavers_as_they_come_are_what_the_records_say(natural: Path) -> None:
    runs = [part.run for part in sections(load_runs([natural]).runs)]
    assert all(len(run.seeds) == 5 for run in runs)
    said = tables("\n".join((overview.against_retraining(runs), paired.nearer(runs))))
    said.append(tables(paired.further(runs))[0])
    told = tables(section("comparison.md", "## Leavers as they come"))
    assert len(told) == len(said) == 4
    parts = {f"Second choice ({part})" for part in PARTS}
    main, worth, counts, further = said
    assert told[:2] == [_without(parts, table, place=1) for table in (main, worth)]
    assert told[2] == _without(parts, counts, place=0)
    uneven = {row for row, column in further if further[row, column] != "–" and column in parts}
    kept = parts | {"Second choice (free)"}
    assert told[3] == {k: v for k, v in further.items() if k[0] in uneven and k[1] in kept}


def _without(names: set[str], table: Cells, place: int) -> Cells:
    return {key: value for key, value in table.items() if key[place] not in names}


def test_every_score_of_theirs_is_what_the_records_say(natural: Path) -> None:
    text = section("comparison-tables.md", "# Leavers as they come")
    parts = sections(load_runs([natural]).runs)
    assert len(parts) == len(tables(text)) == 7
    for part in parts:
        told = text.split(f"## {part.run.config.title}\n\n")[1].split("\n\n")[0]
        assert told == markdown(part.methods, "Method").rstrip()
