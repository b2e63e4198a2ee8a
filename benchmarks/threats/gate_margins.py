"""How far accuracy may fall from 90 % before the gate says that it surely fell beyond a margin.

Print the table (seconds): python -m benchmarks.threats.gate_margins
"""

from __future__ import annotations

from collections.abc import Callable

from secede.erasure.defences.gate import Counts, find_loss
from secede.erasure.documents.plan import Margins

SAMPLES = (30, 100, 1000)
MARGINS = (0.1, 0.05, 0.0)
_OTHERS = 10**7  # samples of other classes, so that one class moves all samples by nothing


def class_fall(samples: int, margin: float) -> float:
    """Return the largest fall of one class that passes, in points."""
    margins = Margins(per_class=margin)

    def passes(right: int) -> bool:
        sizes = (samples, _OTHERS)
        before = Counts(right=(_usual(samples), _OTHERS), samples=sizes)
        return find_loss(margins, before, Counts((right, _OTHERS), sizes)) is None

    return _fall(samples, passes)


def overall_fall(samples: int, margin: float = Margins().overall) -> float:
    """Return the largest fall of all samples together that passes, in points."""
    margins = Margins(overall=margin)

    def passes(right: int) -> bool:
        before, after = (Counts((n,), (samples,)) for n in (_usual(samples), right))
        return find_loss(margins, before, after, by_class=False) is None

    return _fall(samples, passes)


def _usual(samples: int) -> int:
    return round(0.9 * samples)


def _fall(samples: int, passes: Callable[[int], bool]) -> float:
    fewest = min(right for right in range(_usual(samples) + 1) if passes(right))
    return 100 * (_usual(samples) - fewest) / samples


def table() -> str:
    """Return the table of docs/threats.md: points by samples and margin."""
    heads = ("samples", "a class, margin 10 (the default)", "margin 5", "margin 0", "all, margin 5")
    rows = [heads, ("---",) * len(heads)]
    for samples in SAMPLES:
        falls = [class_fall(samples, margin) for margin in MARGINS] + [overall_fall(samples)]
        rows.append((f"{samples:,}", *(f"{fall:.1f}" for fall in falls)))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    print(table())
