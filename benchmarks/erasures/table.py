"""The tables: means over seeds, each score beside its null, and which conditions do not hold.

The null of a score is what another retraining has in place of the erased model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import fmean

Line = Mapping[str, object]
Key = tuple[object, ...]
BySeed = Mapping[int, Line]

MODELS = ("original", "retrained", "again")
LEVEL = 0.01  # below which canaries are seen
LOWEST, HIGHEST = 0.8, 1.25  # loss on the leaver's samples, as a part of retraining's
TIMES = 2.0  # as far off as another retraining, at most, on the probe and in membership
POINTS = 0.01  # of clean accuracy that may be lost
CONDITIONS = ("canaries", "loss", "probe", "clean", "AUC")


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A method's means in one cell beside retraining's and the null's."""

    clean: float
    clean_change: float
    probe: float
    off: float  # mean distance of the probe from retraining's, seed by seed
    off_null: float
    ratio: float  # of the loss on the leaver's samples to retraining's
    ratio_null: float
    auc: float
    auc_off: float  # mean distance from one half
    auc_off_null: float  # of the null, over all scenarios with this share
    seen: int  # seeds in which the canaries are seen
    read: int  # seeds in which there are any

    @property
    def failed(self) -> list[str]:
        """The conditions that do not hold."""
        fails = (
            self.seen > 0,
            not LOWEST <= self.ratio <= HIGHEST,
            self.off > TIMES * self.off_null,
            self.clean_change < -POINTS,
            self.auc_off > TIMES * self.auc_off_null,
        )
        return [name for name, fail in zip(CONDITIONS, fails, strict=True) if fail]

    def cells(self) -> list[str]:
        """Return the numbers as the table shows them."""
        return [
            f"{100 * self.clean:.1f} ({100 * self.clean_change:+.1f})",
            f"{100 * self.probe:.1f}",
            f"{100 * self.off:.1f} ({100 * self.off_null:.1f})",
            f"{self.ratio:.2f} ({self.ratio_null:.2f})",
            f"{self.auc:.3f} (±{self.auc_off_null:.3f})",
            f"{self.seen} of {self.read}" if self.read else "none",
            ", ".join(self.failed) or "–",
        ]


def compare(
    own: BySeed, retrained: BySeed, again: BySeed, *, auc_off_null: float | None = None
) -> Compared:
    """Compare a method with retraining over the seeds that all have.

    Without `auc_off_null` the null of membership is that of these seeds alone, a noisy one.
    """
    seeds = sorted(own.keys() & retrained.keys() & again.keys())
    mine, true, null = ([lines[seed] for seed in seeds] for lines in (own, retrained, again))
    p_values = [_number(line, "canary_p") for line in mine if line["canary_p"] is not None]
    return Compared(
        clean=_mean(mine, "clean"),
        clean_change=_mean(mine, "clean") - _mean(true, "clean"),
        probe=_mean(mine, "probe"),
        off=_apart(mine, true),
        off_null=_apart(null, true),
        ratio=_mean(mine, "loss") / _mean(true, "loss"),
        ratio_null=_mean(null, "loss") / _mean(true, "loss"),
        auc=_mean(mine, "auc"),
        auc_off=_auc_off(mine),
        auc_off_null=_auc_off(null) if auc_off_null is None else auc_off_null,
        seen=sum(p < LEVEL for p in p_values),
        read=len(p_values),
    )


def compared(lines: Iterable[Line]) -> dict[Key, dict[str, Compared]]:
    """Return each cell's methods, compared; cells without retraining's lines are left out."""
    groups: dict[Key, dict[str, dict[int, Line]]] = {}
    nulls: dict[Key, list[Line]] = {}
    for line in lines:
        key = tuple(line[name] for name in ("data", "network", "scenario", "share"))
        groups.setdefault(key, {}).setdefault(str(line["method"]), {})[_seed(line)] = line
        if line["method"] == "again":
            nulls.setdefault(_without_scenario(key), []).append(line)
    return {
        key: {
            name: compare(
                own,
                found["retrained"],
                found["again"],
                auc_off_null=_auc_off(nulls[_without_scenario(key)]),
            )
            for name, own in found.items()
        }
        for key, found in sorted(groups.items(), key=lambda item: str(item[0]))
        if {"retrained", "again"} <= found.keys()
    }


def _without_scenario(key: Key) -> Key:
    return *key[:2], key[3]


def _auc_off(lines: Sequence[Line]) -> float:
    return fmean(abs(_number(line, "auc") - 0.5) for line in lines)


def table(lines: Iterable[Line]) -> str:
    """Return the Markdown table of all cells."""
    rows = [
        "| data | network | scenario | p | model | clean (change) | probe | off by (null) | "
        "loss ratio (null) | AUC (null) | canaries seen | fails |",
        "|---|---|---|--:|---|--:|--:|--:|--:|--:|--:|---|",
    ]
    for key, methods in compared(lines).items():
        for name, judged in methods.items():
            rows.append(f"| {' | '.join([*map(str, key), name, *judged.cells()])} |")
    return "\n".join(rows)


def summary(lines: Iterable[Line]) -> str:
    """Return the Markdown table of each method's means over cells, and of what it fails."""
    groups: dict[Key, list[Compared]] = {}
    for (data, network, *_), methods in compared(lines).items():
        for name, judged in methods.items():
            groups.setdefault((data, network, name), []).append(judged)
    rows = [
        "| data | network | model | clean, change | probe off by (null) | loss off by a factor "
        f"(null) | canaries seen | cells that pass | fail: {' | '.join(CONDITIONS)} |",
        f"|---|---|---|{'--:|' * (5 + len(CONDITIONS))}",
    ]
    for key, cells in groups.items():
        rows.append(f"| {' | '.join([*map(str, key), *_summed(cells)])} |")
    return "\n".join(rows)


def _summed(cells: Sequence[Compared]) -> list[str]:
    off, off_null = (100 * fmean(c.off for c in cells), 100 * fmean(c.off_null for c in cells))
    factor, factor_null = _factor(c.ratio for c in cells), _factor(c.ratio_null for c in cells)
    passed = sum(not cell.failed for cell in cells)
    return [
        f"{100 * fmean(cell.clean_change for cell in cells):+.1f}",
        f"{off:.1f} ({off_null:.1f})",
        f"{factor:.2f} ({factor_null:.2f})",
        f"{sum(cell.seen for cell in cells)} of {sum(cell.read for cell in cells)}",
        f"{passed} of {len(cells)}",
        *(str(sum(name in cell.failed for cell in cells)) for name in CONDITIONS),
    ]


def _factor(ratios: Iterable[float]) -> float:
    """Return the typical factor between two losses, whichever is larger."""
    return exp(fmean(abs(log(ratio)) for ratio in ratios))


def _seed(line: Line) -> int:
    return int(_number(line, "seed"))


def _apart(lines: Sequence[Line], others: Sequence[Line]) -> float:
    pairs = zip(lines, others, strict=True)
    return fmean(abs(_number(a, "probe") - _number(b, "probe")) for a, b in pairs)


def _mean(lines: Sequence[Line], name: str) -> float:
    return fmean(_number(line, name) for line in lines)


def _number(line: Line, name: str) -> float:
    value = line[name]
    if not isinstance(value, float | int):
        raise TypeError(f"{name} is {value!r}, expected a number")
    return float(value)
