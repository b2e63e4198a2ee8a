"""How far accuracy may fall from 90 % before the gate says that it surely fell beyond a margin.

The samples before and after are the same, and clients tell how many changed; before, they were
compared as if they were others.

Print the table (seconds): python -m benchmarks.threats.gate_margins
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from secede.erasure.defences.gate import Counts, find_loss
from secede.erasure.documents.plan import Margins

SAMPLES = (30, 100, 1000)
MARGINS = (0.1, 0.05, 0.0)
GAINED = 0.02  # of the samples, wrong before and right now
_OTHERS = 10**7  # samples of other classes, so that one class moves all samples by nothing


def class_fall(samples: int, margin: float, *, paired: bool = True) -> float:
    """Return the largest fall of one class that passes, in points."""
    margins = Margins(per_class=margin)

    def passes(right: int) -> bool:
        before, after = _counts(samples, right, paired=paired)
        rest = Counts((_OTHERS,), (_OTHERS,), (0,), (0,))
        return find_loss(margins, _beside(before, rest), _beside(after, rest)) is None

    return _fall(samples, passes)


def overall_fall(samples: int, margin: float = Margins().overall, *, paired: bool = True) -> float:
    """Return the largest fall of all samples together that passes, in points."""
    margins = Margins(overall=margin)

    def passes(right: int) -> bool:
        return find_loss(margins, *_counts(samples, right, paired=paired), by_class=False) is None

    return _fall(samples, passes)


def _counts(samples: int, right: int, *, paired: bool) -> tuple[Counts, Counts]:
    """Return counts before and after, with so many right after."""
    before, gained = Counts((_usual(samples),), (samples,)), round(GAINED * samples)
    if not paired:
        return before, Counts((right,), (samples,))
    return before, Counts((right,), (samples,), (_usual(samples) - right + gained,), (gained,))


def _beside(counts: Counts, rest: Counts) -> Counts:
    if counts.lost is None or counts.gained is None:
        return Counts(counts.right + rest.right, counts.samples + rest.samples)
    return Counts(
        counts.right + rest.right,
        counts.samples + rest.samples,
        (*counts.lost, 0),
        (*counts.gained, 0),
    )


def _usual(samples: int) -> int:
    return round(0.9 * samples)


def _fall(samples: int, passes: Callable[[int], bool]) -> float:
    fewest = min(right for right in range(_usual(samples) + 1) if passes(right))
    return 100 * (_usual(samples) - fewest) / samples


def table() -> str:
    """Return the table of docs/threats.md: points before and now, by samples and margin."""
    heads = ("samples", "a class, margin 10 (the default)", "margin 5", "margin 0", "all, margin 5")
    rows = [heads, ("---",) * len(heads)]
    for samples in SAMPLES:
        falls = [
            [class_fall(samples, margin, paired=paired) for margin in MARGINS]
            + [overall_fall(samples, paired=paired)]
            for paired in (False, True)
        ]
        cells = (f"{before:.1f} → {now:.1f}" for before, now in zip(*falls, strict=True))
        rows.append((f"{samples:,}", *cells))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def markdown() -> Iterator[str]:
    """Yield the table's lines."""
    yield from table().splitlines()


def main() -> None:
    """Print them."""
    for line in markdown():
        print(line, flush=True)


if __name__ == "__main__":
    main()
