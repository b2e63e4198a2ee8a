import csv
import io
import re

import pytest

from secede.reports.analysis.estimates import Estimate
from secede.reports.tables.table import (
    Column,
    Mark,
    Row,
    Table,
    csv_text,
    markdown,
    plain_markdown,
)

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
    rows = markdown(TABLE, "Model").replace("\u00a0", " ").splitlines()[2:]
    assert rows == [
        "| Erased (a note, with comma) | 98.1 % (97.0 to 99.0) | never |",
        "| Ratio | never | 2.0× |",
    ]


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
        markdown(Table(TABLE.columns, (Row("short", "", (SHARE,)),)), "Model")


MARKED = Table(
    (Column("clean", "clean accuracy", "share"), Column("gap", "points", "difference")),
    (
        Row(
            "a|b",
            "mine",
            (SHARE, Estimate(-0.004, -0.01, 0.002, 3, "seeds")),
            note="late",
            words="nothing",
            marks=(frozenset({"best"}), frozenset({"best", "as retrained"})),
        ),
        Row("Other", "other", (None, SHARE), words="data", missing="–"),
    ),
    words="needs",
)


def test_markdown_shows_the_best_in_bold_and_what_is_as_retrained() -> None:
    assert markdown(MARKED, "Method").replace("\u00a0", " ").splitlines() == [
        "| Method | needs | clean accuracy | points |",
        "| --- | --- | ---: | ---: |",
        "| a\\|b (late) | nothing | **98.1 %** (97.0 to 99.0) | **−0.4** (−1.0 to +0.2) ≈ |",
        "| Other | data | – | +98.1 (+97.0 to +99.0) |",
    ]


def test_marks_are_notes_in_csv() -> None:
    rows = list(csv.DictReader(io.StringIO(csv_text({"mine": MARKED}))))
    assert [row["note"] for row in rows] == ["late; best", "late; as retrained; best", "", ""]


def test_a_wide_table_is_split_before_a_column_and_the_words_go_with_the_rest() -> None:
    best: frozenset[Mark] = frozenset({"best"})
    row = Row("Erased", "x", (SHARE, TWICE), words="nothing", marks=(best, frozenset()))
    table = Table(TABLE.columns, (row,), words="needs")
    first, second = table.split("upload_mb")
    assert [column.key for column in first.columns] == ["clean"]
    assert [column.key for column in second.columns] == ["upload_mb"]
    assert (first.words, second.words) == ("", "needs")
    assert (first.rows[0].values, second.rows[0].values) == ((SHARE,), (TWICE,))
    assert first.rows[0].marks_of(0) == best
    assert second.rows[0].marks_of(0) == frozenset()


HOSTILE = "\\| <script>alert(1)</script> ![x](http://evil.example/x.png) `a`\n# heading"


def test_strangers_names_are_no_html_link_image_or_further_cell_in_markdown() -> None:
    table = Table(TABLE.columns, (Row(HOSTILE, "own", (SHARE, None), note=HOSTILE),))
    (row,) = markdown(table, "Model").splitlines()[2:]
    assert not re.search(r"(?<!\\)[<\[`]", row)  # each is escaped
    assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", row)) == 4  # three cells: no pipe of its own
    assert plain_markdown("[a](b) <i>") == r"\[a\](b) \<i>"


@pytest.mark.parametrize(
    "name", ["=HYPERLINK(1)", "+1", "-1", "@SUM(1)", " =1", "\t=1", "\r\n=1", "＝1", "－1"]
)
def test_no_text_in_a_csv_file_is_a_formula(name: str) -> None:
    table = Table(TABLE.columns, (Row(name, name, (SHARE, TWICE), name, note=name),))
    for row in csv.DictReader(io.StringIO(csv_text({name: table}), newline="")):
        for key in ("run", "group", "row", "arm", "note"):
            assert row[key] == f"'{name}"
        assert float(row["mean"]) > 0
