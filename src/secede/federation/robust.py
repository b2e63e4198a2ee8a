"""Robust means for post-training: trimmed mean and median, against a few malicious clients.

They drop each entry's `cut` lowest and highest values (Yin et al. 2018, "Byzantine-robust
distributed learning"); the median drops all but the middle. Limits: they need single updates, so
no secure aggregation; they resist at most `cut` malicious clients, always fewer than half; clients
count alike, whatever samples they claim; where clients' data differ they are biased towards the
majority. A malicious client can still pull within the others' range, and of two clients each has
half of the mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from torch import Tensor

from secede import state as states
from secede.errors import ConfigError, did_you_mean
from secede.federation.engine import Mean, Update, aggregate


@dataclass(frozen=True)
class TrimmedMean:
    """The mean without a `share` of the clients at each end, at least one client."""

    share: float = 0.2

    def __post_init__(self) -> None:
        if not 0 < self.share < 0.5:
            raise ConfigError(f"share must be above 0 and below 0.5, got {self.share}")

    def __call__(self, updates: Sequence[Update]) -> dict[str, Tensor]:
        """Return the trimmed mean; of two updates, the mean of both."""
        if not updates:
            raise ConfigError("a trimmed mean of no updates, expected at least one")
        cut = max(1, int(self.share * len(updates)))
        return _trimmed(updates, min(cut, (len(updates) - 1) // 2))


def median(updates: Sequence[Update]) -> dict[str, Tensor]:
    """Return each entry's median; for an even number, the mean of the middle two."""
    if not updates:
        raise ConfigError("a median of no updates, expected at least one")
    return _trimmed(updates, (len(updates) - 1) // 2)


def _trimmed(updates: Sequence[Update], cut: int) -> dict[str, Tensor]:
    """Drop `cut` values at each end; raise and name a client whose update is not finite."""
    names = [f"client {update.client}'s update" for update in updates]
    states.check_all_finite([update.state for update in updates], names)
    return states.trimmed_mean([update.state for update in updates], cut)


MEANS: Mapping[str, Mean] = MappingProxyType(
    {"mean": aggregate, "trimmed": TrimmedMean(), "median": median}
)


def by_name(name: str) -> Mean:
    """Return the mean called `name`; "mean" is FedAvg's, weighted by samples."""
    if name not in MEANS:
        raise ConfigError(
            f"unknown mean {name!r}; {did_you_mean(name, MEANS)}expected one of {', '.join(MEANS)}"
        )
    return MEANS[name]
