"""Short texts for people: counts, sizes, digests, printable characters, lists that fit a line."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

LINE_LENGTH = 300  # characters of a log line, and of a limitation in a receipt
_REST_LENGTH = 20  # of these, for how many more names there are


def plural(count: int, noun: str, many: str | None = None) -> str:
    """Return a count with its noun, as in "1 seed" and "3 seeds"; `many` if that is no -s."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {many or noun + 's'}"


def format_bytes(count: int) -> str:
    """Return a number of bytes in a unit that fits."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"


def short_digest(digest: str) -> str:
    """Return the first 12 digits of a digest."""
    return f"{digest[:12]}…"


def printable(text: object) -> str:
    """Return a text with a question mark for each character that a terminal may not show."""
    return "".join(c if c.isprintable() else "?" for c in str(text))


def printable_lines(text: object) -> str:
    """Return a text with its lines and tabs as they are, and each line printable."""
    return "".join(c if is_visible(c) or c in "\n\t" else "?" for c in str(text))


def is_visible(character: str) -> bool:
    """Return whether a character shows as itself: it is a letter, mark, number, sign or space."""
    category = unicodedata.category(character)
    return category[0] != "C" and category not in {"Zl", "Zp"}


def one_line(text: object) -> str:
    """Return a text with its line breaks and runs of spaces turned into single spaces."""
    return " ".join(str(text).split())


def describe_exception(error: BaseException) -> str:
    """Return the type and text of an exception on one line."""
    return one_line(f"{type(error).__name__}: {error}")


def shorten(text: object, length: int) -> str:
    """Return at most `length` characters of a text, the last one an ellipsis if it was cut."""
    full = str(text)
    return full if len(full) <= length else f"{full[: length - 1]}…"


def list_first(names: Sequence[str], limit: int) -> str:
    """Return the first `limit` names and how many more there are; "none" if there are none."""
    shown = ", ".join(names[:limit])
    return f"{shown} and {len(names) - limit:,} more" if len(names) > limit else shown or "none"


def fill_line(text: str, names: Sequence[str], total: int | None = None) -> str:
    """Return `text`, then as many printable names as fit a line, and how many more there are.

    No name is cut. `total` counts more than `names` where only some of them are known.
    """
    shown = list[str]()
    for name in map(printable, names):
        if len(text) + len(", ".join([*shown, name])) > LINE_LENGTH - _REST_LENGTH:
            break
        shown.append(name)
    rest = (len(names) if total is None else total) - len(shown)
    return text + " and ".join([", ".join(shown)] * bool(shown) + [f"{rest:,} more"] * bool(rest))
