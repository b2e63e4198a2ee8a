"""Who takes part in an exchange, whose reply cannot be used, and whether enough are left.

A retained client that is silent or sends what cannot be used is left out and named; below the
plan's quorum of samples the exchange fails. Every cost is kept, used or not, and so is who was sent
which state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from secede.erasure.defences import reply_checks
from secede.erasure.documents.plan import Plan
from secede.erasure.storage.transition_details import (
    LEAVER,
    MAX_NAMED,
    RETAINED,
    Exchange,
    LeftOut,
    Sent,
)
from secede.erasure.workflow.session import ErasureSession
from secede.errors import SecedeError, SilentError
from secede.federation.cost import Cost
from secede.federation.engine import Update
from secede.state import State


class QuorumError(SilentError):
    """Too few retained clients take part."""


class MissingError(SecedeError):
    """A retained client whose reply cannot be had: the work begins again without it."""

    def __init__(self, client: int, why: str) -> None:
        super().__init__(f"client {client}: {why}")
        self.client, self.why = client, why


@dataclass(kw_only=True)
class Participants:
    """Who takes part in one transition's work, and what it took."""

    session: ErasureSession
    plan: Plan
    present: tuple[str, ...]
    left_out: dict[str, str] = field(default_factory=dict)
    sent: dict[str, set[str]] = field(default_factory=dict)  # states by digest, and to whom
    last_round: tuple[State, tuple[Update, ...]] | None = None  # its start and its updates
    cost_wasted: Cost = field(default_factory=Cost)  # of exchanges whose results were not used
    cost_in_progress: Cost = field(default_factory=Cost)  # of the work that is under way

    @classmethod
    def of(cls, session: ErasureSession) -> Participants:
        """Return those who still take part in this rung."""
        plan = session.plan
        session.backend.set_timeout(plan.client_timeout)
        present = session.progress.present(plan.retained)
        participants = cls(session=session, plan=plan, present=present)
        session.backend.require_quorum(participants.check_round)
        return participants

    def begin_again(self, missing: MissingError) -> None:
        """Begin again without a client; what was spent until here is wasted."""
        self.leave_out(self.client_names[missing.client], missing.why)
        self.cost_wasted, self.cost_in_progress = self.cost, Cost()

    @property
    def cost(self) -> Cost:
        """What all of it took."""
        return self.cost_wasted + self.cost_in_progress

    def leave_out(self, name: str, why: str) -> None:
        """Go on without a client."""
        self.left_out.setdefault(name, why)
        self.present = tuple(other for other in self.present if other != name)

    def check_quorum(self) -> None:
        """Raise unless those present have the plan's share of the retained clients' samples."""
        share = self.sample_share(self.present)
        if share < self.plan.quorum or not self.present:
            reasons = sorted({*self.left_out.values()})
            listed = f" ({', '.join(reasons)})" if reasons else ""
            raise QuorumError(
                f"{len(self.present)} of {len(self.plan.retained)} retained clients take part, "
                f"with {share:.0%} of the samples, expected {self.plan.quorum:.0%} or more{listed}"
            )

    def check_round(self, names: Sequence[str]) -> None:
        """Leave out everybody but `names`; raise if these alone would be too few for a round."""
        for name in {*self.present} - {*names}:
            self.leave_out(name, reply_checks.SILENT)
        self.check_quorum()

    def sample_share(self, names: Sequence[str]) -> float:
        """Return the share of the retained clients' samples; of heads where one is not pinned."""
        pinned = self.pinned_samples
        if any(pinned[name] is None for name in self.plan.retained):
            return len(names) / len(self.plan.retained)
        total = sum(pinned[name] or 0 for name in self.plan.retained)
        return sum(pinned[name] or 0 for name in names) / total

    def exchange(self, cost: Cost | None = None) -> Exchange:
        """Return what the journal keeps of it; `cost` instead of all that it took."""
        left_out = sorted(self.left_out.items())[:MAX_NAMED]
        sent = list(self.sent.items())[:MAX_NAMED]
        return Exchange(
            cost=self.cost if cost is None else cost,
            left_out=tuple(LeftOut(client=name, why=why) for name, why in left_out),
            left_out_count=len(self.left_out),
            sent=tuple(
                Sent(model=digest, to=tuple(who for who in (LEAVER, RETAINED) if who in to))
                for digest, to in sent
            ),
        )

    @cached_property
    def pinned_samples(self) -> Mapping[str, int | None]:
        """Sample counts that the federation pinned, the leaver's too."""
        names = (*self.plan.retained, self.plan.client)
        return {name: self.session.backend.samples(name) for name in names}

    @cached_property
    def client_names(self) -> Mapping[int, str]:
        """Clients' names by their numbers in the engine."""
        return {number: name for name, number in self.session.backend.clients.items()}

    def record_sent(self, digest: str, names: Sequence[str]) -> None:
        """Record who was sent a state."""
        to = {LEAVER if name == self.plan.client else RETAINED for name in names}
        self.sent.setdefault(digest, set()).update(to)
