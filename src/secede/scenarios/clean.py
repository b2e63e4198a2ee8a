"""A benign leaver: nothing sets its data apart, so only its own samples can show forgetting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from secede.data import Samples
from secede.scenarios.scenario import Probe, Scenario, everyone


@dataclass(frozen=True)
class Clean(Scenario):
    """The leaver's samples stay as they are."""

    name: ClassVar[str] = "clean"
    main_measure: ClassVar[str] = "holdout_accuracy"

    def probe(self, test: Samples) -> Probe:
        """Return the test samples themselves."""
        return Probe(test, {"holdout_accuracy": everyone(test)})
