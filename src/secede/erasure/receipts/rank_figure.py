"""The ranks of canaries before and after an erasure, as bars with chance as a line.

Only the geometry is here; the template draws it as SVG whose text is text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from secede.erasure.receipts.canary_rows import CanaryRow

WIDTH, HEIGHT = 360, 160
_LEFT, _RIGHT, _TOP, _BOTTOM = 30.0, 352.0, 16.0, 128.0
_MAX_NUMBERED = 10  # ranks whose bars carry their counts, and whose ticks are all named


@dataclass(frozen=True)
class Bar:
    """One bar: of which model, from where to where, and the count on top of it."""

    kind: str  # before or after
    x: float
    y: float
    width: float
    height: float
    count: int


@dataclass(frozen=True)
class RankFigure:
    """The bars of all canaries with so many candidates each."""

    candidates: int
    count: int
    bars: tuple[Bar, ...]
    ticks: tuple[tuple[float, int], ...]  # place and rank
    chance: float  # canaries at each rank if the coins mean nothing
    chance_y: float
    counts_shown: bool
    label: str  # for those who do not see it


def rank_figures(rows: Sequence[CanaryRow]) -> tuple[RankFigure, ...]:
    """Return one figure for each number of candidates: the reading before, and the last one."""
    series: dict[str, CanaryRow] = {}
    for row in rows:
        series["before" if row.round is None else "after"] = row
    if not series:
        return ()
    sizes = sorted(len(counts) for counts in next(iter(series.values())).histograms)
    return tuple(_figure(size, series) for size in sizes)


def _figure(size: int, series: dict[str, CanaryRow]) -> RankFigure:
    counts = {
        kind: next(each for each in row.histograms if len(each) == size)
        for kind, row in series.items()
    }
    total = sum(next(iter(counts.values())))
    chance = total / size
    highest = max(*(max(each) for each in counts.values()), chance)
    step = (_RIGHT - _LEFT) / size
    width = 0.8 * step / len(counts)
    bars = list[Bar]()
    for place, (kind, histogram) in enumerate(counts.items()):
        for rank, count in enumerate(histogram):
            height = (_BOTTOM - _TOP) * count / highest
            x = _LEFT + step * (rank + 0.1) + place * width
            bars.append(Bar(kind, x, _BOTTOM - height, width, height, count))
    shown = range(1, size + 1) if size <= _MAX_NUMBERED else sorted({1, (size + 1) // 2, size})
    said = "; ".join(f"{kind} {', '.join(map(str, each))}" for kind, each in counts.items())
    return RankFigure(
        candidates=size,
        count=total,
        bars=tuple(bars),
        ticks=tuple((_LEFT + step * (rank - 0.5), rank) for rank in shown),
        chance=chance,
        chance_y=_BOTTOM - (_BOTTOM - _TOP) * chance / highest,
        counts_shown=size <= _MAX_NUMBERED,
        label=f"Canaries at rank 1 to {size}: {said}; by chance {chance:.1f} each",
    )
