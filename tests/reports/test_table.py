import csv
import io

import pytest

from secede.reports.statistics import Estimate
from secede.reports.table import Column, Row, Table, csv_text

SHARE = Estimate(0.981, 0.97, 0.99, 3, "seeds")
TWICE = Estimate(2.0, None, None, 1, "none")
TABLE = Table(
    (Column("clean", "clean accuracy", "share"), Column("upload_mb", "uploaded", "MB")),
    (
        Row("Erased", "projected-ascent", (SHARE, None), "late", "a note, with comma"),
        Row("Ratio", "ratio", (None, TWICE), unit="times"),
    ),
)


def test_rows_become_text_with_intervals() -> None:
    assert TABLE.texts() == (
        ("Erased", "98.1\u00a0% (97.0 to 99.0)", ""),
        ("Ratio", "", "2.0×"),
    )


def test_a_row_may_have_a_unit_of_its_own() -> None:
    assert [unit for _, unit in TABLE.cells(TABLE.rows[1])] == ["times", "times"]


def test_csv_holds_one_line_per_value_in_fractions() -> None:
    rows = list(csv.DictReader(io.StringIO(csv_text({"mine": TABLE}))))
    assert len(rows) == 4
    first = rows[0]
    assert (first["run"], first["row"], first["quantity"]) == ("mine", "Erased", "clean")
    assert (first["mean"], first["low"], first["high"]) == ("0.981", "0.97", "0.99")
    assert (first["seeds"], first["interval"]) == ("3", "seeds")
    assert (first["group"], first["note"]) == ("late", "a note, with comma")
    assert rows[1]["mean"] == ""
    assert (rows[3]["quantity"], rows[3]["mean"], rows[3]["low"]) == ("upload_mb_ratio", "2.0", "")


def test_a_row_must_fill_its_columns() -> None:
    with pytest.raises(ValueError, match="zip"):
        Table(TABLE.columns, (Row("short", "", (SHARE,)),)).texts()
