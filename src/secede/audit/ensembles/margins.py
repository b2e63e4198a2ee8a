"""The margins of four ensembles of models, as the scores of an audit take them.

A margin is the logit of the probability that a model gives a sample's label. The leaver of each
federation is dealt a random part of one *pool*, so that a sample of the pool was the leaver's in
some federations (a *member*) and held out in the others: what is then told of membership is told
of samples, and not of an erasure that shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from secede.errors import DataError

Ensemble = Literal["original", "erased", "retrained", "retrained-again"]
SampleSet = Literal["pool", "retained", "test"]
Floats = NDArray[np.float64]
Booleans = NDArray[np.bool_]

ENSEMBLES: tuple[Ensemble, ...] = ("original", "erased", "retrained", "retrained-again")
SAMPLE_SETS: tuple[SampleSet, ...] = ("pool", "retained", "test")


@dataclass(frozen=True, kw_only=True)
class Ensembles:
    """Margins (models by samples) of each ensemble on each set of samples, and who was a member.

    Row i of every ensemble belongs to federation i: the same deal of the pool, the same seed. The
    models retrained again have that deal and another seed: they are the null. `scalars` has one
    value a model, such as clean accuracy, by name and ensemble.
    """

    margins: Mapping[Ensemble, Mapping[SampleSet, Floats]]
    member: Booleans  # federations by samples of the pool
    scalars: Mapping[str, Mapping[Ensemble, Floats]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for ensemble in ENSEMBLES:
            pool = self.margins[ensemble]["pool"]
            if pool.shape != self.member.shape:
                raise DataError(
                    f"the margins of {ensemble} on the pool are {pool.shape}, expected those of "
                    f"`member`: {self.member.shape}"
                )

    @property
    def models(self) -> int:
        """The number of models in each ensemble."""
        return len(self.member)

    def on(self, sample_set: SampleSet) -> dict[Ensemble, Floats]:
        """Return the margins of all ensembles on one set of samples."""
        return {ensemble: self.margins[ensemble][sample_set] for ensemble in ENSEMBLES}
