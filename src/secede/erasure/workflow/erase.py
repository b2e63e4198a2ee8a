"""Carries a request from receipt to its end, from wherever it stands.

Each call looks at the journal and goes on after the last transition that is in it; whatever was
cut short before is done again and comes out the same, since everything random hangs on the
federation's seed. A request that has ended is told again and not worked on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from secede import files
from secede.erasure.backend import FederationBackend
from secede.erasure.documents.plan import Plan
from secede.erasure.documents.request import Request, due_date
from secede.erasure.planning.options import EraseOptions, are_ignored, check_options
from secede.erasure.signing.keys import PrivateKey, PublicKey
from secede.erasure.storage import progress as courses
from secede.erasure.storage.home import Home
from secede.erasure.storage.journal import Journal
from secede.erasure.storage.journal_entries import Entry
from secede.erasure.storage.journal_rules import QUOTA, check_reason
from secede.erasure.storage.locks import HomeLock
from secede.erasure.storage.model_registry import ModelRegistry
from secede.erasure.workflow import attempt, intake, post_training, promotion, taking
from secede.erasure.workflow.opening import open_session
from secede.erasure.workflow.session import ErasureSession
from secede.errors import RecordError, RequestError, RolledBackError, StateError

logger = logging.getLogger(__name__)

_DAMAGES = 3  # times that a damaged state is computed again before somebody must look


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
    failures: tuple[Mapping[str, object], ...]  # rungs given up before, with their reasons

    def check(self) -> Outcome:
        """Return it if the client is erased; RolledBackError if the model from before stays."""
        if self.state != courses.PROMOTED:
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
    """Write a signed request down and make out the acknowledgement that its client gets.

    `operator` has the key that signs for a client which has none: it counts for requests alone.

    The same one again changes nothing. Where the home's records contradict each other the request
    is in the journal and acknowledged all the same, since its time runs; then TrustError says so.
    """
    home.check_journal()
    name = home.federation.name
    with files.private(), Journal(home.journal) as journal:
        keys = home.client_keys() if operator is None else operator
        outcome = journal.accept(data, now, keyring=keys, federation=name, quota=quota)
        entry = intake.write_acknowledgement(home, journal, outcome.entry, now)
        intake.enter_into_ledger(home, journal, entry, entry.received)
        return entry


def plan(
    home: Home, ground: FederationBackend, request: Request, *, options: EraseOptions, now: datetime
) -> Plan:
    """Return the plan for a request without writing or asking anything.

    One that the server has not taken yet must be such as it would take.
    """
    check_options(options)
    with Journal(home.journal, read_only=True) as journal:
        number = journal.number_of(request.digest())
        if number is None:
            journal.check_new(request, now)
        due = due_date(now) if number is None else journal.entry(number).due
    with ModelRegistry(home.registry, read_only=True) as registry:
        return taking.plan_for(home, ground, registry, request, options, now, due)


def erase(
    home: Home,
    ground: FederationBackend,
    number: int,
    *,
    key: PrivateKey,
    clock: Callable[[], datetime],
    options: EraseOptions | None = None,
    lock: HomeLock | None = None,
) -> Outcome:
    """Carry request `number` to its end and say how it ended.

    RecordError names the process that works in this home already; SilentError says that the leaver
    may still answer. `options` count until there is a plan, which keeps them.
    """
    options = options or EraseOptions()
    with open_session(home, ground, number, key, clock, held=lock) as desk:
        course = desk.course
        if course.last.state == courses.RECEIVED:
            check_options(options)
        elif not course.ended:
            logger.info(f"goes on from {course.last.state}, by the plan that it has")
        if are_ignored(course, options):
            logger.info(
                f"request {number} was planned with other options ({course.last.state}): what is "
                "asked for now changes nothing"
            )
        while not desk.course.ended:
            _advance(desk, options)
        _notify(desk)
        return outcome(home, desk.course)


def close(
    home: Home,
    ground: FederationBackend,
    number: int,
    reason: str,
    *,
    key: PrivateKey,
    clock: Callable[[], datetime],
) -> Outcome:
    """End an open request without erasing, and say why; what was tried for it is destroyed.

    The client gets a signed notice of it.
    """
    check_reason(reason, "closing a request")
    with open_session(home, ground, number, key, clock) as desk:
        if desk.course.ended:
            raise RequestError(f"request {number} has ended already: {desk.course.last.state}")
        if promotion.is_promoted(desk, desk.course):
            raise RequestError(
                f"request {number} cannot be closed: its model serves already; let it end"
            )
        promotion.refuse(desk, reason)
        _notify(desk)
        return outcome(home, desk.course)


def outcome(home: Home, course: courses.Progress) -> Outcome:
    """Say how a request that has ended did so."""
    last, promoted = course.last, course.last.state == courses.PROMOTED
    receipt = home.receipt(course.entry.digest) if promoted else None
    return Outcome(
        request=course.entry.id,
        client=course.entry.client,
        state=last.state,
        reason=last.details.get("reason"),
        rung=last.details["scalars"]["rung"] if promoted else None,
        method=last.details["method"] if promoted else None,
        model=last.details["model"] if promoted else None,
        receipt=receipt,
        page=receipt and receipt.with_suffix(".html"),
        failures=course.failures,
    )


def _notify(desk: ErasureSession) -> None:
    """Sign for the client that its request ended without an erasure, and why, if it did."""
    if desk.course.last.state != courses.PROMOTED:
        intake.write_acknowledgement(desk.home, desk.journal, desk.course.entry, desk.clock())


_STEPS: Mapping[str, Callable[[ErasureSession], None]] = {
    courses.PLANNED: attempt.start_rung,
    courses.ESCALATED: attempt.start_rung,
    courses.LOCAL_STEP: attempt.guard,
    courses.GUARDED: post_training.begin,
    courses.SERVER_STEP: post_training.begin,
    courses.POST_TRAINING: post_training.go_on,
    courses.VERIFIED: promotion.promote,
}


def _advance(desk: ErasureSession, options: EraseOptions) -> None:
    """Make one transition."""
    course = desk.course
    if course.last.state == courses.RECEIVED:
        taking.make_plan(desk, options)
        return
    if promotion.is_promoted(desk, course):
        promotion.promote(desk)  # cut short: whatever serves by now, what was begun is ended
        return
    if desk.serving().digest != desk.plan.model:
        taking.make_plan(desk, options, reason="another model was put into service meanwhile")
        return
    if course.rung >= len(desk.plan.ladder):
        promotion.roll_back(desk)
        return
    try:
        _STEPS[course.last.state](desk)
    except StateError as error:
        # Everything a rung computes is checked there: what is damaged here was read from the disk.
        if course.last.state in (courses.PLANNED, courses.ESCALATED):
            raise
        again = sum(t.state == courses.PLANNED for t in course.way)
        if again > _DAMAGES:
            raise RecordError(
                f"{error}; it was computed {again} times: look at the disk"
            ) from error
        reason = f"a kept state is lost or damaged, begun again: {error}"[:500]
        taking.plan_again(desk, options, reason)
