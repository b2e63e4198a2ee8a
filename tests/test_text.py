"""Short texts for people."""

from __future__ import annotations

from secede.text import (
    LINE_LENGTH,
    fill_line,
    format_bytes,
    list_first,
    plural,
    printable,
    printable_lines,
    shorten,
)

NAMES = [f"encoder.layers.{number}.attention.weight" for number in range(40)]


def test_nouns_follow_their_count() -> None:
    assert [plural(count, "seed") for count in (0, 1, 2)] == ["0 seeds", "1 seed", "2 seeds"]


def test_sizes_have_a_unit_that_fits() -> None:
    sizes = [format_bytes(count) for count in (0, 999, 1_000, 2_500_000, 3_000_000_000)]
    assert sizes == ["0 bytes", "999 bytes", "1.0 kB", "2.5 MB", "3.0 GB"]


def test_a_long_text_ends_with_an_ellipsis() -> None:
    assert [shorten(text, 4) for text in ("abcd", "abcde")] == ["abcd", "abc…"]


def test_the_first_names_are_listed_and_the_others_counted() -> None:
    assert [list_first(names, 2) for names in ([], ["a", "b"], ["a", "b", "c"])] == [
        "none",
        "a, b",
        "a, b and 1 more",
    ]


def test_what_a_terminal_may_not_show_becomes_question_marks() -> None:
    assert printable("a\x1b[31m\n") == "a?[31m?"


def test_lines_tabs_and_spaces_stay_where_a_text_has_several() -> None:
    assert printable_lines("a\x1b[2J\n\tb\x9b\u202e\u200b\u2028c 98\u00a0%\r") == (
        "a?[2J\n\tb????c 98\u00a0%?"
    )


def test_all_names_are_told_where_there_is_room() -> None:
    assert fill_line("without: ", ["a", "b"]) == "without: a, b"
    assert fill_line("without: ", ["a", "b"], 3) == "without: a, b and 1 more"


def test_no_name_is_cut_and_the_others_are_counted() -> None:
    told = fill_line("without: ", NAMES, 1234)
    assert len(told) < LINE_LENGTH
    shown, more = told.removeprefix("without: ").split(" and ")
    names = shown.split(", ")
    assert names == NAMES[: len(names)]
    assert more == f"{1234 - len(names):,} more"


def test_a_name_that_is_longer_than_a_line_is_counted_alone() -> None:
    assert fill_line("without: ", ["a" * LINE_LENGTH]) == "without: 1 more"


def test_what_cannot_be_printed_is_not() -> None:
    assert fill_line("", ["a\x1b[31m\n"]) == "a?[31m?"
