"""What is left of an update at a server that saw it once and kept it not."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Trace:
    """What a server knows of an update that it has not: its share, and what it wrote down then."""

    weight: float  # in the mean that the global model is
    distance: float | None = None  # from the global model, plain L2 over what training moves
    digest: str | None = None

    @property
    def to_reference(self) -> float:
        """How far the reference lies from the global model: p/(1 − p) times the update's way."""
        if not 0 < self.weight < 1 or self.distance is None:
            return 0.0
        return self.weight / (1 - self.weight) * self.distance
