"""Where marks and names go so that none hides another: plain arithmetic, all in points."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

ASIDE = 9.0  # between marks of the same cost
LINE = 10.6  # height of a name

Position = tuple[float, float]


@dataclass(frozen=True)
class Box:
    """What a mark, an interval or a name covers."""

    left: float
    bottom: float
    right: float
    top: float

    def moved(self, aside: float) -> Box:
        """Return the box moved to the right."""
        return Box(self.left + aside, self.bottom, self.right + aside, self.top)

    def overlap(self, other: Box) -> float:
        """Return the area that both cover."""
        wide = min(self.right, other.right) - max(self.left, other.left)
        high = min(self.top, other.top) - max(self.bottom, other.bottom)
        return max(wide, 0.0) * max(high, 0.0)

    def outside(self, frame: Position) -> float:
        """Return how far it reaches out of a frame that begins at the origin."""
        over = (-self.left, -self.bottom, self.right - frame[0], self.top - frame[1])
        return sum(max(end, 0.0) for end in over)


def shifts(columns: Sequence[Box]) -> list[float]:
    """Return how far each box must move to one side, the first ones least, to stand free."""
    found: list[float] = []
    for column in columns:
        taken = [other.moved(aside) for other, aside in zip(columns, found, strict=False)]
        free = (
            aside
            for step in range(len(columns))
            for aside in (step * ASIDE, -step * ASIDE)
            if not any(column.moved(aside).overlap(other) for other in taken)
        )
        found.append(next(free, 0.0))
    return found


def label_offset(place: Position, width: float, taken: Sequence[Box], frame: Position) -> Position:
    """Return where a name begins, from its mark: where it covers least, and then the nearest."""

    def cost(found: Position) -> float:
        box = label_box(place, width, found)
        covered = sum(box.overlap(other) for other in taken)
        leftwards = 4.0 if found[0] < 0 else 0.0
        return 5 * covered + 200 * box.outside(frame) + abs(found[1]) + leftwards

    return min(_candidate_offsets(width), key=cost)


def label_box(place: Position, width: float, begins: Position) -> Box:
    """Return what a name covers that begins at an offset from its mark."""
    left, middle = place[0] + begins[0], place[1] + begins[1]
    return Box(left - 1, middle - LINE / 2, left + width + 1, middle + LINE / 2)


def _candidate_offsets(width: float) -> Iterator[Position]:
    """Yield what may be tried: right, left, above and below, nearest first."""
    for step in range(17):
        for sign in (1, -1) if step else (1,):
            height = sign * step * LINE / 2
            aside = 8.0 if step < 3 else 14.0
            yield aside, height
            yield -aside - width, height
            if step > 1:
                yield -width / 2, height
