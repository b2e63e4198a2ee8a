"""The exact test of canaries: how a model that cannot know the coins ranks what they drew.

Each canary has K candidates and a secret coin drew one of them uniformly. Ordered by the model's
loss, the drawn one has rank 1 (liked best) to K. If the model does not depend on the coins, ranks
are independent and uniform, whatever the model; a remembered canary ranks low. Nothing here is
approximated: outcomes are counted in whole numbers and divided once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

from secede.errors import DataError


@dataclass(frozen=True)
class Ranks:
    """How many canaries have each rank: one histogram for each number of candidates.

    A histogram of K counts belongs to canaries with K candidates; its first count is rank 1. Equal
    losses have to be ordered without the coin, such as by the candidates' order when drawn, or
    against the drawn one: any other way can make up a trace.
    """

    histograms: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        for counts in self.histograms:
            _check_histogram(counts)
        sizes = [len(counts) for counts in self.histograms]
        if len(set(sizes)) < len(sizes):
            raise DataError(f"histograms of {sizes} candidates, expected one for each number")
        if self.count < 1:
            raise DataError("ranks of no canary, expected at least one")

    @classmethod
    def of(cls, ranked: Iterable[tuple[int, int]]) -> Ranks:
        """Return the histograms of pairs (rank, candidates), one pair for each canary."""
        counter = Counter(ranked)
        for rank, candidates in counter:
            if not 1 <= rank <= candidates:
                raise DataError(f"rank {rank} of {candidates} candidates, expected 1 to that")
        sizes = sorted({candidates for _, candidates in counter})
        return cls(
            tuple(tuple(counter[rank, size] for rank in range(1, size + 1)) for size in sizes)
        )

    @classmethod
    def joined(cls, parts: Sequence[Ranks]) -> Ranks:
        """Return the ranks of several sets of canaries together, as of one set with all coins."""
        sums = dict[int, tuple[int, ...]]()
        for counts in (counts for part in parts for counts in part.histograms):
            before = sums.get(len(counts), (0,) * len(counts))
            sums[len(counts)] = tuple(map(sum, zip(before, counts, strict=True)))
        return cls(tuple(sums[size] for size in sorted(sums)))

    @property
    def groups(self) -> tuple[tuple[int, int], ...]:
        """Pairs (candidates, canaries with so many), by the number of candidates."""
        return tuple(sorted((len(counts), sum(counts)) for counts in self.histograms))

    @property
    def count(self) -> int:
        """Number of canaries."""
        return sum(map(sum, self.histograms))

    @property
    def total(self) -> int:
        """Sum of the ranks of all canaries."""
        return sum(r * n for counts in self.histograms for r, n in enumerate(counts, start=1))

    @property
    def hits(self) -> int:
        """Canaries whose drawn candidate is the one that the model likes best."""
        return sum(counts[0] for counts in self.histograms)

    @property
    def last_places(self) -> int:
        """Canaries whose drawn candidate is the one that the model likes least."""
        return sum(counts[-1] for counts in self.histograms)

    @property
    def mean(self) -> float:
        """Mean rank over all canaries."""
        return self.total / self.count

    @property
    def chance_mean(self) -> float:
        """Mean rank to expect of a model that does not depend on the coins."""
        return sum(n * (k + 1) for k, n in self.groups) / (2 * self.count)

    @property
    def z_score(self) -> float:
        """Standard deviations by which the ranks lie below chance; to show, never to decide."""
        variance = sum(n * (k * k - 1) for k, n in self.groups) / 12
        return (self.chance_mean - self.mean) * self.count / math.sqrt(variance)

    @property
    def rank_p_value(self) -> float:
        """Probability of a rank sum this low or lower if the model does not depend on the coins."""
        counts = rank_sum_counts(self.groups)
        return sum(counts[: self.total - self.count + 1]) / sum(counts)

    @property
    def hit_p_value(self) -> float:
        """Probability of so many hits or more if the model does not depend on the coins."""
        counts = hit_counts(self.groups)
        return sum(counts[self.hits :]) / sum(counts)


@lru_cache(maxsize=16)
def rank_sum_counts(groups: tuple[tuple[int, int], ...]) -> tuple[int, ...]:
    """Return in how many ways the coins give each rank sum; the first is the number of canaries."""
    counts = [1]
    for candidates, canaries in groups:
        for _ in range(canaries):
            counts = add_canary(counts, candidates)
    return tuple(counts)


def add_canary(counts: list[int], candidates: int) -> list[int]:
    """Return the counts of rank sums with one more canary, whose ranks are equally likely."""
    below = [0, *accumulate(counts)]
    length = len(counts) + candidates - 1
    return [
        below[min(place + 1, len(counts))] - below[max(place + 1 - candidates, 0)]
        for place in range(length)
    ]


def hit_counts(groups: tuple[tuple[int, int], ...]) -> tuple[int, ...]:
    """Return in how many ways the coins give 0, 1, 2, ... hits: binomial if there is one group."""
    counts = [1]
    for candidates, canaries in groups:
        group = [
            math.comb(canaries, hits) * (candidates - 1) ** (canaries - hits)
            for hits in range(canaries + 1)
        ]
        total = [0] * (len(counts) + canaries)
        for place, ways in enumerate(counts):
            for hits, more in enumerate(group):
                total[place + hits] += ways * more
        counts = total
    return tuple(counts)


def win_p_value(wins: int, count: int) -> float:
    """Return the probability of so many pairwise wins or more by chance.

    A canary's opponent is drawn beforehand among its other candidates; the drawn candidate wins if
    the model likes it better. If the model does not depend on the coins, this is a fair coin.
    """
    if not 0 <= wins <= count or count < 1:
        raise DataError(f"{wins} wins of {count} canaries, expected 0 to at least one")
    return sum(math.comb(count, k) for k in range(wins, count + 1)) / (1 << count)


def _check_histogram(counts: tuple[int, ...]) -> None:
    if len(counts) < 2:
        raise DataError(f"a canary with {len(counts)} candidates, expected two or more")
    if any(count < 0 for count in counts):
        raise DataError(f"a histogram of ranks with {min(counts)} canaries, expected none or more")
