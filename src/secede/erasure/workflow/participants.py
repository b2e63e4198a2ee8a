"""The roll of an exchange: who takes part, whose reply cannot be used, and whether enough are left.

A retained client that is silent or sends what cannot be used is left out and named; below the
plan's quorum of samples the exchange fails. Every cost is kept, used or not, and so is who was sent
which state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from secede.erasure.defences import reply_checks
from secede.erasure.documents.plan import Plan
from secede.erasure.storage import progress
from secede.erasure.workflow.session import ErasureSession
from secede.errors import SecedeError, SilentError
from secede.federation.cost import Cost
from secede.federation.engine import Update
from secede.state import State

LEAVER, RETAINED = "leaver", "retained"


class QuorumError(SilentError):
    """Too few retained clients take part."""


class MissingError(SecedeError):
    """A retained client whose reply to a question cannot be had: the work begins without it."""

    def __init__(self, client: int, why: str) -> None:
        super().__init__(f"client {client}: {why}")
        self.client, self.why = client, why


@dataclass(kw_only=True)
class Participants:
    """Who takes part in one transition's work, and what it took."""

    desk: ErasureSession
    plan: Plan
    present: tuple[str, ...]
    left_out: dict[str, str] = field(default_factory=dict)
    sent: dict[str, set[str]] = field(default_factory=dict)  # states by digest, and to whom
    trained: tuple[State, tuple[Update, ...]] | None = None  # the last round's start and updates
    wasted: Cost = field(default_factory=Cost)  # by exchanges whose results were not used
    trying: Cost = field(default_factory=Cost)  # by the work that is under way

    @classmethod
    def call(cls, desk: ErasureSession) -> Participants:
        """Call those who still take part in this rung."""
        plan = desk.plan
        desk.ground.hurry(plan.client_timeout)
        present = progress.present(plan.retained, desk.course.way)
        roll = cls(desk=desk, plan=plan, present=present)
        desk.ground.require(roll.allow)
        return roll

    def try_again(self, missing: MissingError) -> None:
        """Begin again without a client; what was spent until here is wasted."""
        self.leave_out(self.names[missing.client], missing.why)
        self.wasted, self.trying = self.wasted + self.trying, Cost()

    @property
    def spent(self) -> Cost:
        """What all of it took."""
        return self.wasted + self.trying

    def leave_out(self, name: str, why: str) -> None:
        """Go on without a client."""
        self.left_out.setdefault(name, why)
        self.present = tuple(other for other in self.present if other != name)

    def require(self) -> None:
        """Raise unless those present have the plan's share of the retained clients' samples."""
        share = self.share(self.present)
        if share < self.plan.quorum or not self.present:
            reasons = sorted({*self.left_out.values()})
            told = f" ({', '.join(reasons)})" if reasons else ""
            raise QuorumError(
                f"{len(self.present)} of {len(self.plan.retained)} retained clients take part, "
                f"with {share:.0%} of the samples, expected {self.plan.quorum:.0%} or more{told}"
            )

    def allow(self, names: Sequence[str]) -> None:
        """Raise if a round that these alone take part in would be one of too few."""
        for name in {*self.present} - {*names}:
            self.leave_out(name, reply_checks.SILENT)
        self.require()

    def share(self, names: Sequence[str]) -> float:
        """Return the share of the retained clients' samples; of heads where one is not pinned."""
        pins = self.pins
        if any(pins[name] is None for name in self.plan.retained):
            return len(names) / len(self.plan.retained)
        total = sum(pins[name] or 0 for name in self.plan.retained)
        return sum(pins[name] or 0 for name in names) / total

    def details(self) -> dict[str, Any]:
        """Return what the journal keeps of it."""
        found: dict[str, Any] = {}
        if self.left_out:
            named = sorted(self.left_out.items())[: progress.NAMED]
            found["left_out"] = [{"client": name, "why": why} for name, why in named]
        if self.sent:
            first = list(self.sent.items())[: progress.NAMED]
            found["sent"] = [{"model": digest, "to": sorted(to)} for digest, to in first]
        return found

    @cached_property
    def pins(self) -> Mapping[str, int | None]:
        """Sample counts that the federation pinned, the leaver's too."""
        names = (*self.plan.retained, self.plan.client)
        return {name: self.desk.ground.samples(name) for name in names}

    @cached_property
    def names(self) -> Mapping[int, str]:
        """Clients' names by their numbers in the engine."""
        return {number: name for name, number in self.desk.ground.clients.items()}

    def note_sent(self, digest: str, names: Sequence[str]) -> None:
        """Note who was sent a state."""
        to = {LEAVER if name == self.plan.client else RETAINED for name in names}
        self.sent.setdefault(digest, set()).update(to)
