"""A table as a value, and its text as CSV and Markdown."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from secede.reports.analysis import Estimate, Unit, format_interval, format_mean

_ACTIVE = re.compile(r"[\\`\[\]<]")

Mark = Literal["best", "as retrained"]


@dataclass(frozen=True)
class Column:
    """A quantity: its key in files, its heading and its unit."""

    key: str
    label: str
    unit: Unit


@dataclass(frozen=True)
class Row:
    """One row of a table; a value is None where there is nothing to measure.

    Rows of one `group` stand under one heading; `unit` replaces the columns' units.
    """

    label: str
    arm: str
    values: tuple[Estimate | None, ...]
    group: str = ""
    note: str = ""
    unit: Unit | None = None
    words: str = ""  # under the table's heading of the same name
    missing: str | tuple[str, ...] = "never"  # text for None, or one for each value
    marks: tuple[frozenset[Mark], ...] = ()  # one set for each value; empty: no marks

    def missing_text(self, index: int) -> str:
        """Return the text that stands for one value that is None."""
        return self.missing if isinstance(self.missing, str) else self.missing[index]

    def marks_of(self, index: int) -> frozenset[Mark]:
        """Return the marks of one value."""
        return self.marks[index] if self.marks else frozenset()


@dataclass(frozen=True)
class Table:
    """Columns and rows."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    words: str = ""  # heading of a column of words; empty: no such column

    def cells(self, row: Row) -> Iterator[tuple[Estimate | None, Unit]]:
        """Yield a row's values with the unit each is shown in."""
        for column, value in zip(self.columns, row.values, strict=True):
            yield value, row.unit or column.unit

    def split(self, key: str) -> tuple[Table, Table]:
        """Return the columns before `key`, and those from it on, which keep the words."""
        index = [column.key for column in self.columns].index(key)
        return replace(self._select(slice(index)), words=""), self._select(slice(index, None))

    def _select(self, columns: slice) -> Table:
        rows = (
            replace(row, values=row.values[columns], marks=row.marks[columns] if row.marks else ())
            for row in self.rows
        )
        return replace(self, columns=self.columns[columns], rows=tuple(rows))


def csv_text(tables: dict[str, Table]) -> str:
    """Return tables by run name as CSV, one line for each value; shares are fractions."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    heading = ("run", "group", "row", "arm", "quantity", "mean", "low", "high", "seeds", "interval")
    writer.writerow((*heading, "note"))
    for run, table in tables.items():
        for row in table.rows:
            for index, (column, value) in enumerate(zip(table.columns, row.values, strict=True)):
                key = f"{column.key}_ratio" if row.unit == "times" else column.key
                first = (run, row.group, row.label, row.arm, key)
                notes = "; ".join(filter(None, (row.note, *sorted(row.marks_of(index)))))
                writer.writerow((*map(_as_text, first), *_numbers(value), _as_text(notes)))
    return out.getvalue()


def _as_text(cell: str) -> str:
    """Return a cell that no spreadsheet takes for a formula."""
    return f"'{cell}" if cell.lstrip().startswith(tuple("=+-@＝＋－＠")) else cell


def markdown(table: Table, first: str) -> str:
    """Return a table as Markdown: the best of a column in bold, ≈ after values as retrained."""
    words = (table.words,) if table.words else ()
    lines = [
        (first, *words, *(column.label for column in table.columns)),
        ("---", *("---" for _ in words), *("---:" for _ in table.columns)),
    ]
    for row in table.rows:
        label = f"{row.label} ({row.note})" if row.note else row.label
        values = (_marked(row, index, *cell) for index, cell in enumerate(table.cells(row)))
        lines.append((label, *((row.words,) if words else ()), *values))
    return markdown_rows(lines)


def markdown_rows(lines: Iterable[tuple[str, ...]]) -> str:
    """Return lines of cells as a Markdown table; the second line is its rule."""
    escaped = ((plain_markdown(cell).replace("|", "\\|") for cell in line) for line in lines)
    return "".join(f"| {' | '.join(line)} |\n" for line in escaped)


def plain_markdown(text: str) -> str:
    """Return a text on one line in which nothing is HTML, a link or an image."""
    return _ACTIVE.sub(r"\\\g<0>", " ".join(text.split("\n")))


def _marked(row: Row, index: int, value: Estimate | None, unit: Unit) -> str:
    marks = row.marks_of(index)
    text = row.missing_text(index) if value is None else format_mean(value, unit)
    ends = "" if value is None else format_interval(value, unit)
    text = f"**{text}**" if "best" in marks else text
    return text + (f" ({ends})" if ends else "") + (" ≈" if "as retrained" in marks else "")


def _numbers(value: Estimate | None) -> tuple[object, ...]:
    if value is None:
        return ("", "", "", "", "")
    return (value.mean, value.low, value.high, value.seeds, value.basis)
