"""The table: means over seeds, each score beside its null, and which conditions hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

MODELS = ("original", "retrained", "again")
Line = Mapping[str, object]
LEVEL, LOWEST, HIGHEST, TIMES, POINTS = 0.01, 0.8, 1.25, 2.0, 0.01


def table(lines: Iterable[Line]) -> str:
    """Return the Markdown table of all lines."""
    groups: dict[tuple[object, ...], dict[str, dict[object, Line]]] = {}
    for line in lines:
        key = tuple(line[name] for name in ("data", "network", "scenario", "share"))
        groups.setdefault(key, {}).setdefault(str(line["method"]), {})[line["seed"]] = line
    rows = [
        "| data | network | scenario | p | model | clean | probe (off by; null) | "
        "loss: ratio (null) | AUC (null) | canaries seen | fails |",
        "|---|---|---|--:|---|--:|--:|--:|--:|--:|---|",
    ]
    for key in sorted(groups, key=str):
        rows += _rows(key, groups[key])
    return "\n".join(rows)


def _rows(key: tuple[object, ...], methods: dict[str, dict[object, Line]]) -> list[str]:
    if not {"retrained", "again"} <= methods.keys():
        return []
    found = []
    for name, by_seed in methods.items():
        judged = compare(by_seed, methods["retrained"], methods["again"])
        cells = [*map(str, key), name, *judged.cells(), ", ".join(judged.failed()) or "-"]
        found.append("| " + " | ".join(cells) + " |")
    return found


class Compared:
    """A method's means in one cell beside retraining's and the null's."""

    def __init__(self, own: Sequence[Line], true: Sequence[Line], null: Sequence[Line]) -> None:
        """Take the lines of the same seeds in the same order."""
        self.clean, self.probe = _mean(own, "clean"), _mean(own, "probe")
        self.clean_change = self.clean - _mean(true, "clean")
        self.off = fmean(
            abs(_n(a, "probe") - _n(b, "probe")) for a, b in zip(own, true, strict=True)
        )
        self.off_null = fmean(
            abs(_n(a, "probe") - _n(b, "probe")) for a, b in zip(null, true, strict=True)
        )
        self.ratio = _mean(own, "loss") / _mean(true, "loss")
        self.ratio_null = _mean(null, "loss") / _mean(true, "loss")
        self.auc, self.auc_null = _mean(own, "auc"), _mean(null, "auc")
        p_values = [_n(line, "canary_p") for line in own if line["canary_p"] is not None]
        self.seen, self.read = sum(p < LEVEL for p in p_values), len(p_values)

    def cells(self) -> list[str]:
        """Return the numbers as the table shows them."""
        return [
            f"{100 * self.clean:.1f} ({100 * self.clean_change:+.1f})",
            f"{100 * self.probe:.1f} ({100 * self.off:.1f}; {100 * self.off_null:.1f})",
            f"{self.ratio:.2f} ({self.ratio_null:.2f})",
            f"{self.auc:.3f} ({self.auc_null:.3f})",
            f"{self.seen} of {self.read}" if self.read else "none planted",
        ]

    def failed(self) -> list[str]:
        """Return the conditions that do not hold."""
        conditions = {
            "canaries": self.seen > 0,
            "loss": not LOWEST <= self.ratio <= HIGHEST,
            "probe": self.off > TIMES * self.off_null,
            "clean": self.clean_change < -POINTS,
        }
        return [name for name, fails in conditions.items() if fails]


def compare(
    own: Mapping[object, Line], retrained: Mapping[object, Line], again: Mapping[object, Line]
) -> Compared:
    """Compare a method with retraining over the seeds that all have."""
    seeds = sorted(own.keys() & retrained.keys() & again.keys(), key=str)
    return Compared(*([lines[seed] for seed in seeds] for lines in (own, retrained, again)))


def _n(line: Line, name: str) -> float:
    value = line[name]
    assert isinstance(value, float | int)
    return float(value)


def _mean(lines: Sequence[Line], name: str) -> float:
    return fmean(_n(line, name) for line in lines)
