"""The comparison's tables are what a report on the committed records says, cell by cell."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from secede.reports import overview
from secede.reports.load import load_runs
from secede.reports.page import sections

DOCS = Path(__file__).parents[1] / "docs"

NAMES = {  # of what the records call otherwise
    "Second choice": "firm",
    "Second choice (own)": "own labels alone",
    "Second choice (sunk)": "no floor",
    "Second choice (whole)": "held as a whole",
    "Second choice (free)": "not held",
    "Virtual teacher (held)": "teacher, held by neuron",
}

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


def test_firmer_settings_are_what_the_records_say(natural: Path) -> None:
    runs = [part.run for part in sections(load_runs([natural]).runs)]
    assert len(runs) == 7
    assert all(len(run.seeds) == 5 for run in runs)
    scores, worth = tables(overview.against_retraining(runs))[:2]
    (told,) = tables(section("comparison.md", "## Firmer settings"))
    said = {(row, NAMES[column]): cell for (row, column), cell in scores.items() if column in NAMES}
    said |= {(row, "firm: worth"): worth[row, "Second choice"] for row, _ in worth}
    assert {key: cell for key, cell in told.items() if key[1] != "default"} == said


def test_the_defaults_beside_them_are_those_of_the_section_above() -> None:
    (told,) = tables(section("comparison.md", "## Firmer settings"))
    above = tables(section("comparison.md", "## Leavers as they come"))[0]
    for (row, column), cell in told.items():
        if column == "default":
            assert cell == above[row, "Second choice"]
