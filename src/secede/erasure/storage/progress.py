"""How far a request has come: the states of an erasure, and which may follow which.

    received → planned → local step → guarded → post-training, round by round → verified → promoted
                       ↘ server step (a rung without the leaver) ↗
    a rung that fails → escalated → the next rung, or rolled back if there is none
    after the last round → canaries read, if the leaver has some: a trace leads to more rounds, or
    to the next rung; else → verified
    retraining that lost accuracy → undecided → verified, once a person accepts that
    all rungs, for want of what a few clients withhold → undecided → planned

Everything is read from the journal alone: a process that resumes after a kill sees the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

from secede.erasure.documents import LeftOut, Look, SignedReading
from secede.erasure.storage.journal import Journal
from secede.erasure.storage.journal_entries import Entry
from secede.erasure.storage.transition_details import (
    CANARIES_READ,
    ESCALATED,
    GUARDED,
    LOCAL_STEP,
    PLANNED,
    POST_TRAINING,
    PROMOTED,
    RECEIVED,
    REFUSED,
    ROLLED_BACK,
    SERVER_STEP,
    UNDECIDED,
    VERIFIED,
    BaselineCounts,
    CanariesDetails,
    ComputedDetails,
    EscalationDetails,
    Exchange,
    GuardDetails,
    PlanDetails,
    RoundDetails,
    StartDetails,
    Transition,
    TransitionDetails,
    UndecidedDetails,
    VerificationDetails,
    read_transition,
)
from secede.erasure.types import MAX_SAFE_INTEGER
from secede.errors import LossError, RecordError
from secede.federation.cost import Cost

# Planned again: the serving model changed meanwhile, or a kept state is damaged.
ALLOWED: Mapping[str, Sequence[str]] = {
    RECEIVED: (PLANNED, REFUSED),
    PLANNED: (LOCAL_STEP, SERVER_STEP, ESCALATED, PLANNED, REFUSED),
    LOCAL_STEP: (GUARDED, ESCALATED, PLANNED, REFUSED),
    SERVER_STEP: (POST_TRAINING, ESCALATED, PLANNED, REFUSED),
    GUARDED: (POST_TRAINING, ESCALATED, PLANNED, REFUSED),
    POST_TRAINING: (
        POST_TRAINING,
        CANARIES_READ,
        VERIFIED,
        UNDECIDED,
        ESCALATED,
        PLANNED,
        REFUSED,
    ),
    CANARIES_READ: (POST_TRAINING, VERIFIED, ESCALATED, PLANNED, REFUSED),
    UNDECIDED: (CANARIES_READ, VERIFIED, ESCALATED, PLANNED, REFUSED),
    ESCALATED: (
        LOCAL_STEP,
        SERVER_STEP,
        ESCALATED,
        UNDECIDED,
        ROLLED_BACK,
        PLANNED,
        REFUSED,
    ),
    VERIFIED: (PROMOTED, PLANNED, REFUSED, ROLLED_BACK),
    PROMOTED: (),
    ROLLED_BACK: (),
    REFUSED: (),
}
TERMINAL = tuple(state for state, following in ALLOWED.items() if not following)
_DESTROYED_AS = {  # a key of the receipt's words for what is destroyed
    LOCAL_STEP: "leaver-state",
    GUARDED: "guarded-state",
    SERVER_STEP: "server-state",
    POST_TRAINING: "intermediate-state",
}
DetailsT = TypeVar("DetailsT", bound=TransitionDetails)


@dataclass(frozen=True)
class Progress:
    """A request and its transitions so far."""

    entry: Entry
    transitions: tuple[Transition, ...]

    @classmethod
    def read(cls, journal: Journal, entry: Entry) -> Progress:
        """Read the transitions of a request."""
        return cls(entry, tuple(map(read_transition, journal.transitions(entry.id))))

    @property
    def last(self) -> Transition:
        """The last transition."""
        return self.transitions[-1]

    @property
    def state(self) -> str:
        """The state that the request is in."""
        return self.last.state

    @property
    def ended(self) -> bool:
        """Whether nothing can follow."""
        return self.state in TERMINAL

    @cached_property
    def plans(self) -> tuple[PlanDetails, ...]:
        """The plans that were made, the one that is followed last."""
        return _details(PlanDetails, self.transitions)

    @property
    def plan(self) -> str:
        """The digest of the plan that is followed."""
        if not self.plans:
            raise RecordError(f"request {self.entry.id} has no plan yet")
        return self.plans[-1].plan

    @cached_property
    def since_plan(self) -> tuple[Transition, ...]:
        """The transitions since it was planned, the plan itself left out."""
        last = max(n for n, t in enumerate(self.transitions) if t.state == PLANNED)
        return self.transitions[last + 1 :]

    @property
    def rung(self) -> int:
        """Which rung of the ladder is taken, from 0."""
        return len(_details(EscalationDetails, self.since_plan))

    @cached_property
    def this_rung(self) -> tuple[Transition, ...]:
        """The transitions on this rung."""
        since = self.since_plan
        last = max((n for n, t in enumerate(since) if t.state == ESCALATED), default=-1)
        return since[last + 1 :]

    @property
    def start(self) -> StartDetails:
        """How this rung started."""
        return self._last_of(StartDetails, "start")

    @property
    def guard(self) -> GuardDetails | None:
        """What the guard measured on this rung; None without a local step."""
        guards = _details(GuardDetails, self.this_rung)
        return guards[-1] if guards else None

    @property
    def computed(self) -> tuple[ComputedDetails, ...]:
        """What was computed on this rung."""
        return _details(ComputedDetails, self.this_rung)

    @property
    def last_model(self) -> ComputedDetails:
        """The last transition of this rung that left a model."""
        return self._last_of(ComputedDetails, "model")

    @cached_property
    def rounds(self) -> tuple[RoundDetails, ...]:
        """What came of 0, 1, 2, ... rounds of post-training on this rung."""
        return _details(RoundDetails, self.this_rung)

    @property
    def canary_readings(self) -> tuple[CanariesDetails, ...]:
        """What the canaries said on this rung, look by look."""
        return _details(CanariesDetails, self.this_rung)

    @property
    def canaries_before(self) -> SignedReading | None:
        """What the canaries said in the model from before, since the plan."""
        every = _details(CanariesDetails, self.since_plan)
        return next((each.before for each in every if each.before), None)

    @property
    def looks(self) -> tuple[Look, ...]:
        """All looks at the canaries since the plan."""
        every = _details(CanariesDetails, self.since_plan)
        return tuple(each.look for each in every if each.look)

    @property
    def accepted(self) -> UndecidedDetails | None:
        """What retraining lost on this rung, if a person had to accept it."""
        undecided = _details(UndecidedDetails, self.this_rung)
        return undecided[-1] if undecided else None

    @property
    def verification(self) -> VerificationDetails:
        """What was measured at the end of this rung."""
        return self._last_of(VerificationDetails, "verification")

    @property
    def lacks_quorum(self) -> bool:
        """Whether it is undecided since a few clients have most samples and take no part."""
        return self.state == UNDECIDED and self.transitions[-2].state == ESCALATED

    def check_decided(self) -> None:
        """Raise LossError if a person must decide first: what retraining lost, or with whom."""
        details = self.last.details
        if isinstance(details, UndecidedDetails) and self.lacks_quorum:
            raise LossError(
                f"{self.entry.client} is not erased yet: {details.reason}; these are more than "
                "half of the clients, and those who are missing hold the quorum by their samples: "
                "run the same command later, or with a lower --quorum to go on without them"
            )
        if isinstance(details, UndecidedDetails):
            raise LossError(
                f"retraining without {self.entry.client} is not shown to keep accuracy: "
                f"{details.reason}; the old model stays until a person accepts that: run the same "
                "command (`secede erase`, `secede flower erase`) with --accept-loss REASON, which "
                "the receipt states; other options, such as --aggregation median against a "
                "retained client that spoils it, plan again"
            )

    @property
    def baseline(self) -> BaselineCounts | None:
        """What the retained clients counted with the model from before; the last time counts."""
        rounds = _details(RoundDetails, self.since_plan)
        baselines = [done.gate.baseline for done in rounds if done.gate and done.gate.baseline]
        return baselines[-1] if baselines else None

    @property
    def failures(self) -> tuple[EscalationDetails, ...]:
        """The rungs that were given up."""
        return _details(EscalationDetails, self.transitions)

    @property
    def cost(self) -> Cost:
        """What all of it took, rungs that failed included."""
        total = sum((exchange.cost for exchange in _exchanges(self.transitions)), Cost())
        # Clients claim their gradients: no claim may keep the receipt from being built.
        return replace(total, gradient_samples=min(total.gradient_samples, MAX_SAFE_INTEGER))

    @property
    def models(self) -> tuple[tuple[str, str], ...]:
        """Every intermediate state that was kept, each once: what it is, and its digest."""
        kinds: dict[str, str] = {}
        for transition in self.transitions:
            if transition.state in _DESTROYED_AS and transition.details.ledger_model:
                kinds.setdefault(transition.details.ledger_model, _DESTROYED_AS[transition.state])
        return tuple((what, digest) for digest, what in kinds.items())

    def left_out(self, until: int | None = None) -> tuple[LeftOut, ...]:
        """Return who was left out on the last rung, each with the first reason.

        With `until`, on the rung that transition number `until` - 1 belongs to, up to it.
        """
        by_name: dict[str, LeftOut] = {}
        transitions = self.transitions[:until]
        ends = (n for n, t in enumerate(transitions) if t.state in (ESCALATED, PLANNED))
        begin = max(ends, default=-1) + 1
        for exchange in _exchanges(transitions[begin:]):
            for client in exchange.left_out:
                by_name.setdefault(client.client, client)
        return tuple(by_name[name] for name in sorted(by_name))

    def present(self, retained: Iterable[str], until: int | None = None) -> tuple[str, ...]:
        """Return who of `retained` still takes part, or did before transition number `until`."""
        gone = {client.client for client in self.left_out(until)}
        return tuple(name for name in retained if name not in gone)

    def _last_of(self, kind: type[DetailsT], what: str) -> DetailsT:
        details = _details(kind, self.this_rung)
        if not details:
            raise RecordError(f"request {self.entry.id} has no {what} on this rung yet")
        return details[-1]


def _exchanges(transitions: Sequence[Transition]) -> Iterator[Exchange]:
    kinds = (StartDetails, RoundDetails, CanariesDetails, EscalationDetails, VerificationDetails)
    for transition in transitions:
        if isinstance(transition.details, kinds) and transition.details.exchange is not None:
            yield transition.details.exchange


def _details(kind: type[DetailsT], transitions: Sequence[Transition]) -> tuple[DetailsT, ...]:
    return tuple(t.details for t in transitions if isinstance(t.details, kind))
