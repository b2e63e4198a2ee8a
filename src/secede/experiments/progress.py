"""Protocols that report the progress of runs; the command line draws it. Imports no torch."""

from __future__ import annotations

from typing import Protocol

from secede.experiments.config import Config


class SeedProgress(Protocol):
    """Progress of one seed, called from the thread that records it."""

    def round(self, arm: str, number: int, row: dict[str, dict[str, float]]) -> None:
        """Report a round of an arm that was run, or was recorded before."""

    def end(self) -> None:
        """Report that the seed is finished."""


class Progress(Protocol):
    """Progress of all runs, called from several threads."""

    def expect(self, seeds: int, lanes: int) -> None:
        """Announce how many seeds run in how many lanes; finished ones are counted too."""

    def begin(self, config: Config, seed: int, rounds: int) -> SeedProgress:
        """Report that a seed starts or resumes, with this many rounds in all."""

    def reused(self, config: Config, seed: int) -> None:
        """Report that a seed was finished before."""
