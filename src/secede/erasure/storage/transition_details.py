"""What the journal keeps of each transition of an erasure: one model for each state.

A transition is written from its model and read back as one; details that fit no model are damage.
The ledger holds a transition's model and scalars, which follow from the details alone.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Literal

from pydantic import ValidationError

from secede.erasure.canonical_json import digest
from secede.erasure.documents import LeftOut, Look, Scope, SignedReading, Software, Verification
from secede.erasure.storage.journal_entries import TransitionRow
from secede.erasure.types import (
    Count,
    Digest,
    Document,
    Forgotten,
    Name,
    Number,
    Rung,
    Scalar,
    describe_errors,
)
from secede.errors import RecordError
from secede.federation.cost import Cost

RECEIVED, PLANNED, REFUSED = "received", "planned", "refused"
LOCAL_STEP, SERVER_STEP, GUARDED = "local-step", "server-step", "guarded"
POST_TRAINING, CANARIES_READ = "post-training", "canaries-read"
ESCALATED, VERIFIED = "escalated", "verified"
UNDECIDED, PROMOTED, ROLLED_BACK = "undecided", "promoted", "rolled-back"

LEAVER: Literal["leaver"] = "leaver"
RETAINED: Literal["retained"] = "retained"


class Sent(Document):
    """A state by its digest, and who was sent it: the leaver, the retained clients present."""

    model: Digest
    to: tuple[Literal["leaver", "retained"], ...]


class Exchange(Document):
    """What the exchanges with clients took, who was left out, and which states were sent."""

    cost: Cost = Cost()
    left_out: tuple[LeftOut, ...] = ()  # at most `MAX_NAMED`; more are asked again
    left_out_count: Count = 0
    sent: tuple[Sent, ...] = ()

    def scalars(self) -> dict[str, Scalar]:
        """Return the bytes and who was left out, for the ledger."""
        return {
            "upload_bytes": self.cost.upload_bytes,
            "download_bytes": self.cost.download_bytes,
            "left_out": self.left_out_count,
        }


MAX_REASON = 500  # characters of a reason
MAX_NAMED = 400  # clients left out, or states sent, that one transition names


class ClassCounts(Document):
    """By class: samples of the retained clients, and how many of them were answered right.

    The changes since the model from before: `lost` were right then and are wrong now.
    """

    right: tuple[Count, ...]
    samples: tuple[Count, ...]
    lost: tuple[Count, ...] | None = None  # None: some client did not compare
    gained: tuple[Count, ...] | None = None


class BaselineCounts(ClassCounts):
    """The same with the model from before; `counted_by` is the digest of who counted."""

    counted_by: Digest


class GateResult(Document):
    """What the retained clients counted after a round, and what the gate says of it."""

    counts: ClassCounts
    baseline: BaselineCounts | None = None  # if it was counted again in this transition
    passed: bool
    reason: str  # "passed", or why not
    vetoed: bool  # by the server's own samples
    variance: Number = 0.0  # of the changes in a class, by rounding at the clients

    @property
    def accuracy(self) -> float:
        """The share of all samples that was answered right."""
        return sum(self.counts.right) / sum(self.counts.samples)


class GuardReport(Document):
    """What the guard measured of the returned state and did to it: scalars only."""

    digest: Digest  # of the state that post-training starts from
    centre: Literal["reference", "global"]  # "global" where single updates are hidden
    distance: Number  # to the centre, as returned
    distance_to_global: Number
    distance_to_line: Number | None  # through the global model and the leaver's last update
    unit: Number  # a third of the distance from the centre to fresh models
    max_distance: Number  # from the centre: more is refused
    min_distance: Number  # to any known state: less is refused
    min_line_distance: Number
    radius: Number | None  # of the ball around the centre: the method's own, or the guard's
    ball: Literal["method", "guard"] | None  # whose
    known: Count  # further registered models that it was compared with
    projections: Count  # 1 if the state had to be pulled back into that ball
    restored: Count  # entries that no local step may move and that came back changed
    to_reference: Number = 0.0  # from the global model, where no more than this is known of it


class UnusedWeights(Document):
    """What the first round took out of a model that the retained clients' training does not use."""

    removed_share: Number  # of the layers' squared weights
    zeroed: Count  # values that were set to zero
    kept: tuple[str, ...] = ()  # names of weights that stayed as the client returned them
    kept_count: Count = 0  # all of these, named or not
    cleared: tuple[str, ...] = ()  # that stayed but for what nobody's training reaches
    cleared_count: Count = 0

    @property
    def changed(self) -> bool:
        """Whether anything was taken out."""
        return bool(self.removed_share or self.zeroed)

    def scalars(self) -> dict[str, Scalar]:
        """Return the counts, for the ledger."""
        return {
            "unused_share_removed": self.removed_share,
            "unused_zeroed": self.zeroed,
            "unused_kept": self.kept_count,
            "unused_cleared": self.cleared_count,
        }


class TransitionDetails(Document):
    """What the journal keeps of one transition."""

    state: ClassVar[str]
    ledger_fields: ClassVar[frozenset[str]] = frozenset()  # that are scalars of the ledger's row

    @property
    def ledger_model(self) -> str | None:
        """The model that the ledger's row names, if the transition made one."""
        return None

    def scalars(self) -> dict[str, Scalar]:
        """Return what the ledger's row says."""
        return self.model_dump(include=set(self.ledger_fields))


class ReceivedDetails(TransitionDetails):
    """The request was accepted."""

    state: ClassVar[str] = RECEIVED


class PlanDetails(TransitionDetails):
    """A plan was made, with these options; planning again starts from them."""

    state: ClassVar[str] = PLANNED
    ledger_fields = frozenset({"plan"})
    plan: Digest
    options: dict[str, Any]  # of `planning.options.EraseOptions`, as JSON
    reason: str | None = None  # for planning again


class ModelDetails(TransitionDetails):
    """A transition that follows a plan and leaves a model."""

    plan: Digest
    model: Digest

    @property
    def ledger_model(self) -> str | None:
        """The digest of the model."""
        return self.model


class ComputedDetails(ModelDetails):
    """A transition whose model was computed, and kept in a file of states."""

    state_file: Digest  # the model, and what its method remembers
    software: Software  # that computed it


class StartDetails(ComputedDetails):
    """A rung was started: by the leaver's local step, or by the server alone."""

    ledger_fields = frozenset({"rung", "method"})
    rung: Rung
    method: Name
    report: dict[str, Scalar]  # of the method
    exchange: Exchange

    def scalars(self) -> dict[str, Scalar]:
        """Return rung, method and bytes."""
        cost = self.exchange.cost
        sent = {"upload_bytes": cost.upload_bytes, "download_bytes": cost.download_bytes}
        return super().scalars() | sent


class LocalStepDetails(StartDetails):
    """The leaver took its local step."""

    state: ClassVar[str] = LOCAL_STEP


class ServerStepDetails(StartDetails):
    """The server started without the leaver."""

    state: ClassVar[str] = SERVER_STEP


class GuardDetails(ComputedDetails):
    """The guard accepted the returned state."""

    state: ClassVar[str] = GUARDED
    report: GuardReport

    def scalars(self) -> dict[str, Scalar]:
        """Return what the guard measured."""
        return self.report.model_dump(mode="json")


class RoundDetails(ComputedDetails):
    """A round of post-training; round 0 is the start itself."""

    state: ClassVar[str] = POST_TRAINING
    round: Count
    trained_from: Digest | None  # None: it is the start
    gate: GateResult | None = None  # None: nobody counted
    unused_weights: UnusedWeights | None = None  # None: nothing was looked for
    exchange: Exchange

    @property
    def passed(self) -> bool:
        """Whether the gate is passed."""
        return self.gate is not None and self.gate.passed

    def scalars(self) -> dict[str, Scalar]:
        """Return the round's number, accuracy, the gate's answer and what it took."""
        scalars: dict[str, Scalar] = {"round": self.round, **self.exchange.scalars()}
        if self.gate is not None:
            scalars |= {
                "accuracy": self.gate.accuracy,
                "passed": self.gate.passed,
                "vetoed": self.gate.vetoed,
            }
        return scalars | (self.unused_weights.scalars() if self.unused_weights else {})


class CanariesDetails(TransitionDetails):
    """The leaver was asked to read its canaries in a rung's model, and what that says."""

    state: ClassVar[str] = CANARIES_READ
    ledger_fields = frozenset({"round"})
    plan: Digest
    model: Digest
    round: Count
    before: SignedReading | None  # None: an earlier look has it, or nobody could read
    look: Look | None
    absent: str | None  # why a reading is missing
    verdict: Forgotten
    reason: str
    exchange: Exchange

    @property
    def ledger_model(self) -> str | None:
        """The digest of the model that was read."""
        return self.model

    def scalars(self) -> dict[str, Scalar]:
        """Return the verdict, the counts that it follows from, and a digest of the readings."""
        scalars = super().scalars() | {"verdict": self.verdict, **self.exchange.scalars()}
        after = self.look.after if self.look else None
        for name, signed in (("before", self.before), ("after", after)):
            if signed is not None:
                counts = signed.reading.counts()
                scalars[f"mean_rank_{name}"] = counts.ranks.mean
                scalars[f"wins_{name}"] = counts.wins
                scalars[f"reading_{name}"] = digest(signed.model_dump(mode="json"))
        return scalars


class EscalationDetails(TransitionDetails):
    """A rung was given up; `outcome` is the kind of reason, `next_rung` None after the last one."""

    state: ClassVar[str] = ESCALATED
    ledger_fields = frozenset({"rung", "method", "outcome"})
    plan: Digest
    rung: Rung
    method: Name
    outcome: Name
    reason: str
    next_rung: Count | None
    exchange: Exchange | None = None  # None: clients were not asked

    def scalars(self) -> dict[str, Scalar]:
        """Return rung, method, outcome and what it took."""
        return super().scalars() | (self.exchange.scalars() if self.exchange else {})


class UndecidedDetails(TransitionDetails):
    """A person decides: whether what retraining lost may serve, or who must take part."""

    state: ClassVar[str] = UNDECIDED
    ledger_fields = frozenset({"plan"})
    plan: Digest
    reason: str  # what the gate says, or the last rung's


class VerificationDetails(ComputedDetails):
    """The last round's model was measured: all that the receipt says of it."""

    state: ClassVar[str] = VERIFIED
    ledger_fields = frozenset({"rounds", "rounds_needed"})
    rounds: Count
    rounds_needed: Count | None  # None: none of those that were counted was good enough
    trained_from: Digest | None
    verification: Verification
    limits: tuple[str, ...]
    holdings: tuple[str, ...]  # that the server has of the leaver alone
    scope: Scope
    controller: str | None = None  # as the federation names it now; the receipt checks both
    contact: str | None = None
    training: dict[str, bool | int | float | str | None]  # the receipt checks it
    left_out_count: Count  # on the whole rung
    exchange: Exchange

    def scalars(self) -> dict[str, Scalar]:
        """Return the two answers, the rounds and who was left out."""
        return super().scalars() | {
            "forgotten": self.verification.forgotten,
            "useful": self.verification.useful,
            "left_out": self.left_out_count,
        }


class PromotionDetails(ModelDetails):
    """The new model serves and the receipt is issued."""

    state: ClassVar[str] = PROMOTED
    ledger_fields = frozenset({"receipt", "rung"})
    rung: Rung
    method: Name
    receipt: Digest


class ClosingDetails(TransitionDetails):
    """The request ended without an erasure."""

    ledger_fields = frozenset({"failed_rungs"})
    reason: str
    failed_rungs: Count


class RefusalDetails(ClosingDetails):
    """The request could not be done for, or was closed."""

    state: ClassVar[str] = REFUSED
    withdrawn: bool = False  # by the client: it counts against its quota


class RollbackDetails(ClosingDetails):
    """No rung succeeded; the model from before stays."""

    state: ClassVar[str] = ROLLED_BACK


_MODELS: dict[str, type[TransitionDetails]] = {
    model.state: model
    for model in (
        ReceivedDetails,
        PlanDetails,
        LocalStepDetails,
        ServerStepDetails,
        GuardDetails,
        RoundDetails,
        CanariesDetails,
        EscalationDetails,
        UndecidedDetails,
        VerificationDetails,
        PromotionDetails,
        RefusalDetails,
        RollbackDetails,
    )
}


@dataclass(frozen=True, kw_only=True)
class Transition:
    """One step of an erasure; numbers count from 0 without a gap."""

    number: int
    at: datetime
    details: TransitionDetails

    @property
    def state(self) -> str:
        """The state that it leads to."""
        return self.details.state


def read_transition(row: TransitionRow) -> Transition:
    """Return a row of the journal with its details checked; RecordError if they are damaged."""
    place = f"transition {row.number} of request {row.request}"
    if row.state not in _MODELS:
        raise RecordError(f"{place} has an unknown state {row.state!r}: restore the journal")
    try:
        details = _MODELS[row.state].model_validate_json(json.dumps(dict(row.details)))
    except ValidationError as error:
        raise RecordError(
            f"the journal is damaged at {place} ({describe_errors(error)}): restore it from a "
            "backup"
        ) from error
    return Transition(number=row.number, at=row.at, details=details)
