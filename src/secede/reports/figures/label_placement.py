"""Find free places for marks and their labels; plain arithmetic in points."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

MARK_SPACING = 9.0  # between marks at the same place
LABEL_HEIGHT = 10.6

Position = tuple[float, float]


@dataclass(frozen=True)
class Box:
    """The rectangle that a mark, an interval or a label covers."""

    left: float
    bottom: float
    right: float
    top: float

    def shifted(self, distance: float) -> Box:
        """Return the box shifted to the right."""
        return Box(self.left + distance, self.bottom, self.right + distance, self.top)

    def overlap(self, other: Box) -> float:
        """Return the area covered by both boxes."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.top, other.top) - max(self.bottom, other.bottom)
        return max(width, 0.0) * max(height, 0.0)

    def overhang(self, frame: Position) -> float:
        """Return how far the box reaches out of a frame with its corner at the origin."""
        over = (-self.left, -self.bottom, self.right - frame[0], self.top - frame[1])
        return sum(max(end, 0.0) for end in over)


def shifts(columns: Sequence[Box]) -> list[float]:
    """Return how far each box must shift sideways to stand free, the first ones least."""
    chosen: list[float] = []
    for column in columns:
        placed = [other.shifted(shift) for other, shift in zip(columns, chosen, strict=False)]
        free = (
            shift
            for step in range(len(columns))
            for shift in (step * MARK_SPACING, -step * MARK_SPACING)
            if not any(column.shifted(shift).overlap(other) for other in placed)
        )
        chosen.append(next(free, 0.0))
    return chosen


def label_offset(
    place: Position, width: float, obstacles: Sequence[Box], frame: Position
) -> Position:
    """Return the offset of a label from its mark at which it covers least, the nearest of these."""

    def cost(offset: Position) -> float:
        box = label_box(place, width, offset)
        covered = sum(box.overlap(other) for other in obstacles)
        leftwards = 4.0 if offset[0] < 0 else 0.0
        return 5 * covered + 200 * box.overhang(frame) + abs(offset[1]) + leftwards

    return min(_candidate_offsets(width), key=cost)


def label_box(place: Position, width: float, offset: Position) -> Box:
    """Return the box of a label at an offset from its mark."""
    left, middle = place[0] + offset[0], place[1] + offset[1]
    return Box(left - 1, middle - LABEL_HEIGHT / 2, left + width + 1, middle + LABEL_HEIGHT / 2)


def _candidate_offsets(width: float) -> Iterator[Position]:
    """Yield offsets to the right, left, above and below, nearest first."""
    for step in range(17):
        for sign in (1, -1) if step else (1,):
            height = sign * step * LABEL_HEIGHT / 2
            gap = 8.0 if step < 3 else 14.0
            yield gap, height
            yield -gap - width, height
            if step > 1:
                yield -width / 2, height
