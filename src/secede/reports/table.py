"""A table as a value, and its text for files and the terminal."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass

from secede.reports.formats import Unit, full
from secede.reports.statistics import Estimate


@dataclass(frozen=True)
class Column:
    """A quantity: its key in files, its heading and the form of its values."""

    key: str
    label: str
    unit: Unit


@dataclass(frozen=True)
class Row:
    """One line of a table; a value is None where there is nothing to measure.

    Rows of one `group` belong under one heading; `unit` replaces the columns' units.
    """

    label: str
    arm: str
    values: tuple[Estimate | None, ...]
    group: str = ""
    note: str = ""
    unit: Unit | None = None


@dataclass(frozen=True)
class Table:
    """Columns and rows."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]

    def cells(self, row: Row) -> Iterator[tuple[Estimate | None, Unit]]:
        """Yield a row's values with the unit each is shown in."""
        for column, value in zip(self.columns, row.values, strict=True):
            yield value, row.unit or column.unit

    def texts(self) -> tuple[tuple[str, ...], ...]:
        """Return every row as text: its label, then mean and interval of each value."""
        return tuple(
            (row.label, *("" if v is None else full(v, unit) for v, unit in self.cells(row)))
            for row in self.rows
        )


def csv_text(tables: dict[str, Table]) -> str:
    """Return tables by run name as CSV, one line per value; shares are fractions, not percent."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    heading = ("run", "group", "row", "arm", "quantity", "mean", "low", "high", "seeds", "interval")
    writer.writerow((*heading, "note"))
    for run, table in tables.items():
        for row in table.rows:
            for column, value in zip(table.columns, row.values, strict=True):
                key = f"{column.key}_ratio" if row.unit == "times" else column.key
                first = (run, row.group, row.label, row.arm, key)
                writer.writerow((*first, *_numbers(value), row.note))
    return out.getvalue()


def _numbers(value: Estimate | None) -> tuple[object, ...]:
    if value is None:
        return ("", "", "", "", "")
    return (value.mean, value.low, value.high, value.seeds, value.basis)
