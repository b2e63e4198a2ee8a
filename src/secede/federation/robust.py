"""Robust means for post-training: a few malicious clients cannot drag them anywhere.

Each entry's `cut` lowest and highest values are left out (Yin et al. 2018, "Byzantine-robust
distributed learning"); the median leaves out all but the middle. Limits: they need single updates,
so not under secure aggregation; they hold while no more than `cut` clients are malicious, below
half at best; clients count alike, whatever samples they claim; and where clients' data differ they
are biased towards what most have. A malicious client can still pull within the others' range, and
with two clients left either of them has half of the mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from torch import Tensor

from secede import state as states
from secede.errors import ConfigError, did_you_mean
from secede.federation.engine import Update, aggregate

Mean = Callable[[Sequence[Update]], dict[str, Tensor]]


@dataclass(frozen=True)
class TrimmedMean:
    """The mean without a `share` of the clients at each end, at least one client."""

    share: float = 0.2

    def __post_init__(self) -> None:
        if not 0 < self.share < 0.5:
            raise ConfigError(f"share must be above 0 and below 0.5, got {self.share}")

    def __call__(self, updates: Sequence[Update]) -> dict[str, Tensor]:
        """Return the mean of what is left; of two updates, where others fell out, of both."""
        if not updates:
            raise ConfigError("a trimmed mean of no updates, expected at least one")
        cut = max(1, int(self.share * len(updates)))
        return _trimmed(updates, min(cut, (len(updates) - 1) // 2))


def median(updates: Sequence[Update]) -> dict[str, Tensor]:
    """Return the middle of each entry's values, or the mean of the middle two."""
    if not updates:
        raise ConfigError("a median of no updates, expected at least one")
    return _trimmed(updates, (len(updates) - 1) // 2)


def _trimmed(updates: Sequence[Update], cut: int) -> dict[str, Tensor]:
    """Leave out `cut` at each end; a NaN has no place in an order, so its sender is named."""
    names = [f"client {update.client}'s update" for update in updates]
    states.check_all_finite([update.state for update in updates], names)
    return states.trimmed_mean([update.state for update in updates], cut)


MEANS: Mapping[str, Mean] = MappingProxyType(
    {"mean": aggregate, "trimmed": TrimmedMean(), "median": median}
)


def by_name(name: str) -> Mean:
    """Return the mean called `name`: "mean" is FedAvg's, weighted by samples."""
    if name not in MEANS:
        raise ConfigError(
            f"unknown mean {name!r}; {did_you_mean(name, MEANS)}expected one of {', '.join(MEANS)}"
        )
    return MEANS[name]
