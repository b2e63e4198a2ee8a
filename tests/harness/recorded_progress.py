"""A progress of runs that records its events."""

from __future__ import annotations

from secede.experiments.config import Config


class RecordedProgress:
    """Records the events of all seeds."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []

    def expect(self, seeds: int, lanes: int) -> None:
        self.lanes = lanes

    def begin(self, config: Config, seed: int, rounds: int) -> RecordedProgress:
        self.events.append(("begin", rounds))
        return self

    def round(self, arm: str, number: int, row: dict[str, dict[str, float]]) -> None:
        self.events.append((arm, number))

    def end(self) -> None:
        self.events.append(("end", 0))

    def reused(self, config: Config, seed: int) -> None:
        self.events.append(("reused", seed))
