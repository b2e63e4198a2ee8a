"""Markdown tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from benchmarks.timing import Timing


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table, numbers to the right; a short row is filled with blanks."""
    full = [[*row, *[""] * (len(columns) - len(row))] for row in rows]
    numeric = [any(row[i][:1].isdigit() for row in full) for i in range(len(columns))]
    rule = ["--:" if is_numeric else "---" for is_numeric in numeric]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (columns, rule, *full))


def milliseconds(timing: Timing) -> str:
    """Return a median in milliseconds, as precisely as it means something."""
    return significant(1e3 * timing.median)


def brief(timings: Mapping[str, Timing]) -> str:
    """Return all medians in one line, for those who wait."""
    return ", ".join(f"{name} {milliseconds(timing)} ms" for name, timing in timings.items())


def quartiles(timing: Timing) -> str:
    """Return the quartiles in milliseconds."""
    return f"{significant(1e3 * timing.low)}–{significant(1e3 * timing.high)}"


def times(ratio: float) -> str:
    """Return a ratio."""
    return f"{ratio:.2f}×"


def significant(value: float) -> str:
    """Return `value` with three digits, or all digits before the point."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
