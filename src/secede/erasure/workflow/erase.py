"""Carries a request from receipt to its end, from wherever it stands.

Each call reads the journal and continues after its last transition; whatever was cut short before
is done again and comes out the same, since everything random hangs on the federation's seed. For a
request that has ended only its outcome is returned.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from secede import files
from secede.erasure.backend import FederationBackend
from secede.erasure.canonical_json import read_bounded
from secede.erasure.documents import (
    MAX_ACKNOWLEDGEMENT_BYTES,
    Acknowledgement,
    Ended,
    Plan,
    Request,
    due_date,
    sign_acknowledgement,
    verify_acknowledgement,
)
from secede.erasure.planning.options import (
    EraseOptions,
    accepted_loss,
    check_options,
    differ_from_plans,
    options_to_json,
    planned_options,
)
from secede.erasure.planning.plan_table import plan_text
from secede.erasure.planning.planner import fault_of_mean, plan_for
from secede.erasure.signing.keys import PrivateKey, PublicKey
from secede.erasure.storage import (
    CANARIES_READ,
    ESCALATED,
    GUARDED,
    LOCAL_STEP,
    MAX_REASON,
    PLANNED,
    POST_TRAINING,
    PROMOTED,
    QUOTA,
    RECEIVED,
    SERVER_STEP,
    UNDECIDED,
    VERIFIED,
    ClosingDetails,
    Entry,
    EscalationDetails,
    Home,
    HomeLock,
    Journal,
    Ledger,
    ModelRegistry,
    PlanDetails,
    Progress,
    PromotionDetails,
    RoundDetails,
    StartDetails,
    Transition,
    UndecidedDetails,
    check_reason,
    lock_home,
    read_transition,
)
from secede.erasure.types import format_time
from secede.erasure.workflow import attempt, post_training, promotion
from secede.erasure.workflow.consistency import accepted, check_home, complete
from secede.erasure.workflow.federation_binding import bind_federation
from secede.erasure.workflow.session import ErasureSession, open_session
from secede.errors import RecordError, RequestError, RolledBackError, StateError, TrustError
from secede.text import printable, shorten

logger = logging.getLogger(__name__)

_MAX_DAMAGED = 3  # times that a damaged state is computed again, before somebody must look
_DAMAGED = "a kept state is lost or damaged, begun again: "
_DIVERGED = (
    "retraining failed with what retained clients sent, and one of them can cause that: begun "
    "again with their updates joined by the median"
)
_OTHER_OPTIONS = "retraining was undecided: begun again with other options"
_QUORUM = "too few clients took part on all rungs: begun again"
_TEXT_LENGTH = 300  # of one that an acknowledgement states


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How an erasure ended."""

    request: int
    client: str
    state: str  # promoted, rolled-back or refused
    reason: str | None
    rung: str | None  # that was promoted
    method: str | None
    model: str | None  # that serves now because of it
    receipt: Path | None
    page: Path | None
    failures: tuple[EscalationDetails, ...]  # rungs given up before

    def check(self) -> Outcome:
        """Return it if the client is erased; RolledBackError if the model from before stays."""
        if self.state != PROMOTED:
            raise RolledBackError(f"{self.client} was not erased: {self.state}: {self.reason}")
        return self


def receive(
    home: Home,
    data: bytes,
    now: datetime,
    *,
    quota: int = QUOTA,
    operator: Mapping[str, PublicKey] | None = None,
) -> Entry:
    """Record a signed request, and write the acknowledgement that its client gets.

    `operator` has the key that signs for a client without one; it counts for requests alone. The
    same request again changes nothing. Where the home's records contradict each other the request
    is in the journal and acknowledged all the same, since its time runs; then TrustError says so.
    """
    home.check_journal()
    name = home.federation.name
    with files.private(), Journal(home.journal) as journal:
        keys = home.client_keys() if operator is None else operator
        server = home.server_id
        outcome = journal.accept(
            data, now, keyring=keys, federation=name, server=server, quota=quota
        )
        entry = write_acknowledgement(home, journal, outcome.entry, now)
        enter_into_ledger(home, journal, entry, entry.received)
        return entry


def write_acknowledgement(home: Home, journal: Journal, entry: Entry, now: datetime) -> Entry:
    """Write the acknowledgement of a request into the home, and note in the journal when.

    An unchanged one is not written again. It changes with an extension, and when the request ends
    without an erasure.
    """
    path = home.acknowledgement_path(entry.digest)
    acknowledgement = Acknowledgement(
        request=entry.digest,
        federation=home.federation.name,
        client=entry.client,
        received=format_time(entry.received),
        due=format_time(due_date(entry.received)),
        extended_to=format_time(entry.due) if entry.extended else None,
        reason=entry.reason,
        ended=_ended(read_transition(journal.transitions(entry.id)[-1])),
    )
    data = sign_acknowledgement(acknowledgement, home.server_key())
    with files.private():
        if not path.exists() or path.read_bytes() != data:
            _check_replaceable(home, path, entry.digest)
            files.write_bytes(path, data)
    return journal.acknowledge(entry.id, now)


def _check_replaceable(home: Home, path: Path, request: str) -> None:
    """Raise if a valid acknowledgement of another request is there."""
    if not path.exists():
        return
    with suppress(TrustError):  # damaged: it is written again
        data = read_bounded(path, MAX_ACKNOWLEDGEMENT_BYTES)
        if verify_acknowledgement(data, home.keyring()).request != request:
            raise RecordError(
                f"{path} is a valid acknowledgement of another request and is not replaced: move "
                "it to the name of its own request, and start again"
            )


def _ended(last: Transition) -> Ended | None:
    if not isinstance(last.details, ClosingDetails):
        return None
    reason = printable(last.details.reason)[:_TEXT_LENGTH]
    return Ended.model_validate({"state": last.state, "at": format_time(last.at), "reason": reason})


def enter_into_ledger(home: Home, journal: Journal, entry: Entry, now: datetime) -> None:
    """Write into the ledger that a request was accepted, and until when it was extended, once."""
    with Ledger(home.ledger) as ledger, ModelRegistry(home.registry) as registry:
        check_home(home, journal, ledger, registry)
        complete(home, journal, ledger, now)
        for body in accepted(journal, entry):
            ledger.append_once(body, now)
        journal.save_ledger_head(ledger.head())


def register_change(home: Home, now: datetime) -> bool:
    """Enter federation.json and the public keys as they are into the ledger; return if new.

    For a change by the operator. All else must agree.
    """
    home.check_journal()
    with (
        lock_home(home, purpose="registering a change"),
        Journal(home.journal) as journal,
        Ledger(home.ledger) as ledger,
        ModelRegistry(home.registry) as registry,
    ):
        check_home(home, journal, ledger, registry, check_federation=False)
        return bind_federation(home, journal, ledger, home.federation, now)


def plan(
    home: Home,
    backend: FederationBackend,
    request: Request,
    *,
    options: EraseOptions,
    now: datetime,
) -> Plan:
    """Return the plan for a request without writing or asking anything.

    A request that the server has not received yet must be one that it would accept.
    """
    check_options(options)
    with Journal(home.journal, read_only=True) as journal:
        number = journal.number_of(request.digest())
        if number is None:
            journal.check_new(request, now)
        due = due_date(now) if number is None else journal.entry(number).due
    with ModelRegistry(home.registry, read_only=True) as registry:
        return plan_for(home, backend, registry, request, options, now, due)


def erase(
    home: Home,
    backend: FederationBackend,
    number: int,
    *,
    key: PrivateKey,
    clock: Callable[[], datetime],
    options: EraseOptions | None = None,
    lock: HomeLock | None = None,
) -> Outcome:
    """Carry request `number` to its end and return how it ended.

    RecordError names the process that works in this home already; SilentError says that the leaver
    may still answer, LossError that a person must decide. `options` count until there is a plan,
    which keeps them; an undecided request is planned again with others, unless `accept_loss` is
    given, which counts at any time. One that lacked a quorum is planned again in any case.
    """
    options = options or EraseOptions()
    with open_session(home, backend, number, key, clock, held=lock) as session:
        progress = session.progress
        if progress.state == RECEIVED:
            check_options(options)
        elif not progress.ended:
            logger.info(f"resuming from {progress.state} with the existing plan")
        differ = differ_from_plans(progress, options)
        if progress.lacks_quorum:
            check_options(options)
            how = options if differ else planned_options(progress, options)
            _make_plan(session, how, reason=_QUORUM)
        elif differ and progress.state == UNDECIDED and not options.accept_loss:
            check_options(options)
            _make_plan(session, options, reason=_OTHER_OPTIONS)
        elif differ:
            logger.warning(
                f"request {number} already has a plan ({progress.state}) with other options: the "
                "ones given now are ignored"
            )
        session.accepted_loss = accepted_loss(session.progress, options)
        while not session.progress.ended:
            _advance(session, options)
        _notify(session)
        return outcome(home, session.progress)


def close_request(
    home: Home,
    backend: FederationBackend,
    number: int,
    reason: str,
    *,
    key: PrivateKey,
    clock: Callable[[], datetime],
    withdrawn: bool = False,
) -> Outcome:
    """End an open request without erasing, for a reason; what was tried for it is destroyed.

    The client gets a signed notice of it. One that the client has `withdrawn` counts against its
    quota.
    """
    check_reason(reason, "closing a request")
    with open_session(home, backend, number, key, clock) as session:
        if session.progress.ended:
            raise RequestError(f"request {number} has ended already: {session.progress.state}")
        if promotion.is_promoted(session):
            raise RequestError(
                f"request {number} cannot be closed: its model serves already; let it end"
            )
        promotion.refuse(session, reason, withdrawn=withdrawn)
        _notify(session)
        return outcome(home, session.progress)


def outcome(home: Home, progress: Progress) -> Outcome:
    """Return how a request that has ended did so."""
    details = progress.last.details
    promoted = details if isinstance(details, PromotionDetails) else None
    receipt = home.receipt_path(progress.entry.digest) if promoted else None
    return Outcome(
        request=progress.entry.id,
        client=progress.entry.client,
        state=progress.state,
        reason=details.reason if isinstance(details, ClosingDetails) else None,
        rung=promoted.rung if promoted else None,
        method=promoted.method if promoted else None,
        model=promoted.model if promoted else None,
        receipt=receipt,
        page=receipt and receipt.with_suffix(".html"),
        failures=progress.failures,
    )


def _notify(session: ErasureSession) -> None:
    """Sign for the client that its request ended without an erasure, and why, if it did."""
    if session.progress.state != PROMOTED:
        entry = session.progress.entry
        write_acknowledgement(session.home, session.journal, entry, session.clock())


_STEPS: Mapping[str, Callable[[ErasureSession], None]] = {
    PLANNED: attempt.start_rung,
    ESCALATED: attempt.start_rung,
    LOCAL_STEP: attempt.guard,
    GUARDED: post_training.begin,
    SERVER_STEP: post_training.begin,
    POST_TRAINING: post_training.proceed,
    CANARIES_READ: post_training.heed_canaries,
    UNDECIDED: post_training.decide,
    VERIFIED: promotion.promote,
}


def _advance(session: ErasureSession, options: EraseOptions) -> None:
    """Make one transition."""
    progress = session.progress
    if progress.state == RECEIVED:
        _make_plan(session, options)
    elif promotion.is_promoted(session):
        promotion.promote(session)  # cut short: whatever serves by now, what was begun is ended
    elif session.registry.serving_model(session.run).digest != session.plan.model:
        _make_plan(
            session,
            planned_options(progress, options),
            reason="another model was put into service meanwhile",
        )
    elif progress.rung >= len(session.plan.ladder) and _median_may_help(session):
        robust = replace(planned_options(progress, options), mean="median")
        _make_plan(session, robust, reason=_DIVERGED)
    elif progress.rung >= len(session.plan.ladder) and _few_withhold_the_quorum(session):
        reason = progress.failures[-1].reason
        session.advance(UndecidedDetails(plan=session.plan.digest(), reason=reason))
        session.progress.check_decided()
    elif progress.rung >= len(session.plan.ladder):
        promotion.roll_back(session)
    else:
        _take_step(session, options)


def _median_may_help(session: ErasureSession) -> bool:
    """Return whether retraining broke after a mean that a single client's update decides."""
    plan, failed = session.plan, session.progress.failures[-1]
    if plan.mean != "mean" or (failed.rung, failed.outcome) != ("retraining", "broken"):
        return False
    details = [transition.details for transition in session.progress.since_plan]
    models = [each for each in details if isinstance(each, StartDetails | RoundDetails)]
    if not any(isinstance(each, RoundDetails) and each.round for each in models[-1:]):
        return False  # it broke in the first round, which starts from the server's own state
    return not fault_of_mean("median", plan.ladder, len(plan.retained), plan.single_updates)


def _few_withhold_the_quorum(session: ErasureSession) -> bool:
    """Return whether most clients took part on the last rung, but too few of the samples.

    A client's samples are what it claimed while it trained: one must not keep somebody in by it.
    """
    progress, failed = session.progress, session.progress.failures[-1]
    if failed.outcome != "quorum" or failed.exchange is None:
        return False
    gone = {*progress.left_out(len(progress.transitions) - 1), *failed.exchange.left_out}
    count = max(len({client.client for client in gone}), failed.exchange.left_out_count)
    return 2 * count < len(session.plan.retained)


def _take_step(session: ErasureSession, options: EraseOptions) -> None:
    """Do what follows the last transition; plan again where a kept state is damaged."""
    progress = session.progress
    try:
        _STEPS[progress.state](session)
    except StateError as error:
        # Everything a rung computes is checked there: what is damaged here was read from the disk.
        if progress.state in (PLANNED, ESCALATED):
            raise
        damaged = sum((plan.reason or "").startswith(_DAMAGED) for plan in progress.plans)
        if damaged >= _MAX_DAMAGED:
            times = damaged + 1
            raise RecordError(f"{error}; it was computed {times} times: check the disk") from error
        session.advance(
            PlanDetails(
                plan=progress.plan,
                options=options_to_json(planned_options(progress, options)),
                reason=shorten(f"{_DAMAGED}{error}", MAX_REASON),
            )
        )


def _make_plan(
    session: ErasureSession, options: EraseOptions, *, reason: str | None = None
) -> None:
    """Plan for the model that serves now; a request that cannot be carried out is refused.

    The journal keeps the options with the plan.
    """
    progress = session.progress
    try:
        plan = plan_for(
            session.home,
            session.backend,
            session.registry,
            session.request,
            options,
            session.clock(),
            progress.entry.due,
        )
    except RequestError as error:
        promotion.refuse(session, str(error))
        return
    logger.info(plan_text(plan))
    digest = session.home.save_plan(plan)
    session.advance(PlanDetails(plan=digest, options=options_to_json(options), reason=reason))
