"""Which texts and names a document may hold."""

from __future__ import annotations

import pytest
from pydantic import TypeAdapter, ValidationError

from secede.erasure.types import Name, Text, check_name, check_text
from secede.errors import ConfigError

INVISIBLE = {
    "zero-width space": "\u200b",
    "zero-width joiner": "\u200d",
    "left-to-right mark": "\u200e",
    "right-to-left mark": "\u200f",
    "Arabic letter mark": "\u061c",
    "byte order mark": "\ufeff",
    "soft hyphen": "\u00ad",
    "tag": "\U000e0041",
    "word joiner": "\u2060",
    "override": "\u202e",
    "isolate": "\u2066",
    "escape": "\x1b",
    "next line": "\x85",
    "line separator": "\u2028",
    "paragraph separator": "\u2029",
    "private use": "\ue000",
    "unassigned": "\u0378",
    "variation selector": "\ufe0f",
    "Hangul filler": "\u3164",
    "blank Braille pattern": "\u2800",
    "grapheme joiner": "\u034f",
}


@pytest.mark.parametrize("character", INVISIBLE.values(), ids=INVISIBLE)
def test_a_text_with_an_invisible_character_is_refused(character: str) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Text).validate_python(f"erased{character}")


@pytest.mark.parametrize(
    "text", ["contract ended", "Größe × 2, 98.1\u00a0%", "契約終了", "انتهى العقد", "सहमति वापस ली"]
)
def test_a_text_in_any_language_may_be_said(text: str) -> None:
    assert TypeAdapter(Text).validate_python(text) == text


@pytest.mark.parametrize("name", [".", "..", ".ssh", "...a"])
def test_no_client_is_called_like_a_folder_or_a_hidden_file(name: str) -> None:
    with pytest.raises(ConfigError, match="the first no dot"):
        check_name(name)
    with pytest.raises(ValidationError):
        TypeAdapter(Name).validate_python(name)


@pytest.mark.parametrize("name", ["site-1", "a.b", "n:1", "x" * 64, "_", "0."])
def test_other_names_stay(name: str) -> None:
    assert check_name(name) == TypeAdapter(Name).validate_python(name) == name


def test_a_line_for_people_is_checked_before_it_is_written() -> None:
    assert check_text("University Hospital North") == "University Hospital North"
    for text in ("", "two\nlines", "x" * 301, "turned \u202eround"):
        with pytest.raises(ConfigError, match=r"contact .* cannot be used"):
            check_text(text, "contact")
