"""Who is told how runs go; the command line draws it. Imports no torch."""

from __future__ import annotations

from typing import Protocol

from secede.experiments.config import Config


class TurnProgress(Protocol):
    """Is told how one seed goes, from the thread that records it."""

    def round(self, arm: str, number: int, row: dict[str, dict[str, float]]) -> None:
        """A round of an arm is done, or was found done."""

    def end(self) -> None:
        """The seed is finished."""


class Progress(Protocol):
    """Is told how runs go, from several threads; the command line draws it."""

    def expect(self, turns: int, lanes: int) -> None:
        """So many seeds come, in so many lanes; those found finished are among them."""

    def begin(self, config: Config, seed: int, rounds: int) -> TurnProgress:
        """A seed starts or goes on, with this many rounds in all."""

    def reused(self, config: Config, seed: int) -> None:
        """A seed was found finished."""
