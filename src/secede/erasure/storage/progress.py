"""The course of an erasure: its states, which may follow which, and how far a request has come.

    received → planned → local step → guarded → post-training, round by round → verified → promoted
                       ↘ server step (a rung without the leaver) ↗
    a rung that fails → escalated → the next rung, or rolled back if there is none

Everything here is read from the journal alone, so that whoever goes on after a kill sees the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from secede.erasure.storage.journal_entries import Entry, Transition
from secede.erasure.types import MAX_SAFE_INTEGER, Document, Name
from secede.errors import RecordError
from secede.federation.cost import Cost

RECEIVED, PLANNED, REFUSED = "received", "planned", "refused"
LOCAL_STEP, SERVER_STEP, GUARDED = "local-step", "server-step", "guarded"
POST_TRAINING, ESCALATED, VERIFIED = "post-training", "escalated", "verified"
PROMOTED, ROLLED_BACK = "promoted", "rolled-back"

# Planned again: the serving model changed meanwhile, or a kept state is damaged.
ALLOWED: Mapping[str, Sequence[str]] = {
    RECEIVED: (PLANNED, REFUSED),
    PLANNED: (LOCAL_STEP, SERVER_STEP, ESCALATED, PLANNED, REFUSED),
    LOCAL_STEP: (GUARDED, ESCALATED, PLANNED, REFUSED),
    SERVER_STEP: (POST_TRAINING, ESCALATED, PLANNED, REFUSED),
    GUARDED: (POST_TRAINING, ESCALATED, PLANNED, REFUSED),
    POST_TRAINING: (POST_TRAINING, VERIFIED, ESCALATED, PLANNED, REFUSED),
    ESCALATED: (LOCAL_STEP, SERVER_STEP, ESCALATED, ROLLED_BACK, PLANNED, REFUSED),
    VERIFIED: (PROMOTED, PLANNED, REFUSED, ROLLED_BACK),
    PROMOTED: (),
    ROLLED_BACK: (),
    REFUSED: (),
}
COMPUTED = (LOCAL_STEP, SERVER_STEP, GUARDED, POST_TRAINING, VERIFIED)  # by some software
TERMINAL = tuple(state for state, following in ALLOWED.items() if not following)


@dataclass(frozen=True)
class Progress:
    """A request and its way so far."""

    entry: Entry
    way: tuple[Transition, ...]

    @property
    def last(self) -> Transition:
        """Where it stands."""
        return self.way[-1]

    @property
    def ended(self) -> bool:
        """Whether nothing can follow."""
        return self.last.state in TERMINAL

    @property
    def plan(self) -> str:
        """The digest of the plan that it follows."""
        planned = [t for t in self.way if t.state == PLANNED]
        if not planned:
            raise RecordError(f"request {self.entry.id} has no plan yet")
        return str(planned[-1].details["plan"])

    @property
    def since_plan(self) -> tuple[Transition, ...]:
        """What happened since it was planned, the plan itself left out."""
        last = max(n for n, t in enumerate(self.way) if t.state == PLANNED)
        return self.way[last + 1 :]

    @property
    def rung(self) -> int:
        """Which rung of the ladder is taken, from 0."""
        return sum(t.state == ESCALATED for t in self.since_plan)

    @property
    def this_rung(self) -> tuple[Transition, ...]:
        """What happened on this rung."""
        way = self.since_plan
        last = max((n for n, t in enumerate(way) if t.state == ESCALATED), default=-1)
        return way[last + 1 :]

    @property
    def rounds(self) -> tuple[Mapping[str, Any], ...]:
        """What was counted after 0, 1, 2, ... rounds of post-training on this rung."""
        return tuple(t.details for t in self.this_rung if t.state == POST_TRAINING)

    @property
    def before(self) -> Mapping[str, Any] | None:
        """What the retained clients counted with the model from before; the last time counts."""
        found = [t.details["before"] for t in self.since_plan if "before" in t.details]
        return found[-1] if found else None

    @property
    def failures(self) -> tuple[Mapping[str, Any], ...]:
        """The rungs that failed: rung, method, outcome and reason."""
        return tuple(t.details for t in self.way if t.state == ESCALATED)

    @property
    def cost(self) -> Cost:
        """What all of it took, rungs that failed included."""
        total = Cost()
        for transition in self.way:
            total += Cost(**transition.details.get("cost", {}))
        # Clients claim their gradients: no claim may keep the receipt from being made out.
        return replace(total, gradient_samples=min(total.gradient_samples, MAX_SAFE_INTEGER))

    @property
    def models(self) -> tuple[tuple[str, str], ...]:
        """Every intermediate state that was kept, each once: what it is, and its digest."""
        found: dict[str, str] = {}
        for transition in self.way:
            digest = transition.details.get("model")
            if digest is not None and transition.state in _KEPT:
                found.setdefault(str(digest), _KEPT[transition.state])
        return tuple((what, digest) for digest, what in found.items())


_KEPT = {
    LOCAL_STEP: "leaver-state",
    GUARDED: "guarded-state",
    SERVER_STEP: "server-state",
    POST_TRAINING: "intermediate-state",
}


NAMED = 400  # in one transition; more are asked again


class Left(Document):
    """A retained client that was left out, and why: silent, malformed, not-finite and the like."""

    client: Name
    why: Name


def left_out(way: Sequence[Transition]) -> tuple[Left, ...]:
    """Return who was left out on the rung that `way` ends on, each with the first reason."""
    found: dict[str, Left] = {}
    for transition in reversed(way):
        if transition.state in (ESCALATED, PLANNED):
            break
        for told in reversed(transition.details.get("left_out", ())):
            found[told["client"]] = Left.model_validate(told)
    return tuple(found[name] for name in sorted(found))


def present(retained: Iterable[str], way: Sequence[Transition]) -> tuple[str, ...]:
    """Return who of `retained` still takes part after `way`."""
    gone = {left.client for left in left_out(way)}
    return tuple(name for name in retained if name not in gone)
