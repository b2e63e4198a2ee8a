"""The settings of canaries, and how many of them a client of some size can have.

The defaults are 2 % of 1,500 samples. Measured on five such clients with embedded MNIST that all
plant, after ten rounds: p < 1e-6 at 95 % of the clients or more, p < 0.001 at all, with `small-cnn`
and `mlp`; clean accuracy changes by less than 0.2 points. Of as many mislabelled samples `mlp`
tells most at p < 0.05, of withheld twins nothing: these kinds need more. Imports no torch.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from secede.errors import ConfigError, did_you_mean

Kind = Literal["made-up", "mislabelled", "withheld-twins"]
KINDS: tuple[Kind, ...] = get_args(Kind)
# Of canaries with two candidates, six that are all told right still have p > 0.01.
MINIMUM_COUNT = 7
MAXIMUM_COUNT = 256  # the exact test takes time as its square
MAXIMUM_COPIES = 100
MAXIMUM_SHARE = 0.5


@dataclass(frozen=True)
class Size:
    """The number of canaries of a client, and of the training copies of each."""

    count: int
    copies: int

    @property
    def planted(self) -> int:
        """The number of samples that canaries take in training."""
        return self.count * self.copies


@dataclass(frozen=True, kw_only=True)
class CanaryOptions:
    """How many canaries a client plants, of what kind, and how much of its training they take."""

    count: int = 10
    copies: int = 3
    kind: Kind = "made-up"
    max_share: float = 0.02  # of the client's samples
    noise: float = 0.05  # standard deviation of a copy's noise, as a share of the data's range

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(
                f"canaries: unknown kind {self.kind!r}; {did_you_mean(str(self.kind), KINDS)}"
                f"expected one of {', '.join(KINDS)}"
            )
        _check_whole("count", self.count, MINIMUM_COUNT, MAXIMUM_COUNT)
        _check_whole("copies", self.copies, 1, MAXIMUM_COPIES)
        _check_number("max_share", self.max_share, MAXIMUM_SHARE)
        _check_number("noise", self.noise, 1.0)
        if self.max_share == 0:
            raise ConfigError("canaries: max_share is 0, expected a share above it")

    def size(self, samples: int) -> Size | None:
        """Return the canaries of a client with so many samples; None if it is too small.

        A client that is short of samples has fewer canaries first, then fewer copies of each.
        """
        # A product such as 0.29 * 100 may come out a little below the whole number that it is.
        budget = math.floor(self.max_share * samples + 1e-9)
        for copies in range(self.copies, 0, -1):
            count = min(self.count, budget // copies)
            if count >= MINIMUM_COUNT:
                return Size(count, copies)
        return None

    def why_too_small(self, samples: int) -> str:
        """Return the sentence for a client that is too small for canaries."""
        least = math.ceil(MINIMUM_COUNT / self.max_share - 1e-9)
        return (
            f"no canaries were planted: the client has {samples:,} samples, and "
            f"{MINIMUM_COUNT} canaries within {100 * self.max_share:g} % need {least:,}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as JSON has them."""
        return asdict(self)


def _check_whole(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(
            f"canaries: {name} is {value!r:.40}, expected a whole number from {low} to {high}"
        )


def _check_number(name: str, value: object, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= high:
        raise ConfigError(
            f"canaries: {name} is {value!r:.40}, expected a number from 0 to {high:g}"
        )
