"""Lines that end with names: as many as there is room for, none of them cut, and how many more."""

from __future__ import annotations

from collections.abc import Sequence

LINE = 300  # characters of a limit in a receipt, and of a line that is told
_MORE = 20  # of these, for how many more there are


def listed(text: str, names: Sequence[str], count: int | None = None) -> str:
    """Return `text` and as many printable names as a line can hold; `count`: of all there are."""
    shown = list[str]()
    for name in names:
        printable = "".join(c if c.isprintable() else "?" for c in name)
        if len(text) + len(", ".join([*shown, printable])) > LINE - _MORE:
            break
        shown.append(printable)
    more = (len(names) if count is None else count) - len(shown)
    return text + " and ".join([", ".join(shown)] * bool(shown) + [f"{more:,} more"] * bool(more))
