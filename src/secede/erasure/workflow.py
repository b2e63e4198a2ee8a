"""Carries a request from receipt to its end, from wherever it stands.

Each call looks at the journal and goes on after the last transition that is in it; whatever was
cut short before is done again and comes out the same, since everything random hangs on the
federation's seed. A request that has ended is told again and not worked on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from secede import state as states
from secede.erasure import closing, planning, rounds, rungs
from secede.erasure import course as courses
from secede.erasure.admission import QUOTA
from secede.erasure.desk import Desk, Tell
from secede.erasure.entries import Entry
from secede.erasure.ground import Ground
from secede.erasure.hold import leased, locked
from secede.erasure.home import Home
from secede.erasure.journal import Journal
from secede.erasure.keys import PrivateKey
from secede.erasure.ledger import Ledger
from secede.erasure.lineage import Lineage
from secede.erasure.plan import Plan
from secede.erasure.planning import Wishes
from secede.erasure.request import Request
from secede.errors import RecordError, RequestError, StateError

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


def receive(home: Home, data: bytes, now: datetime, *, quota: int = QUOTA) -> Entry:
    """Write a signed request down and tell the client so; the same one again changes nothing."""
    name = home.federation.name
    with Journal(home.journal) as journal:
        outcome = journal.accept(data, now, keyring=home.keyring(), federation=name, quota=quota)
        return journal.acknowledge(outcome.entry.id, now)


def foresee(home: Home, ground: Ground, request: Request, *, wishes: Wishes, now: datetime) -> Plan:
    """Return the plan for a request without writing or asking anything."""
    with Lineage(home.registry, read_only=True) as registry:
        return _plan(home, ground, registry, request, wishes, now)


def erase(
    home: Home,
    ground: Ground,
    number: int,
    *,
    key: PrivateKey,
    clock: Callable[[], datetime],
    wishes: Wishes | None = None,
    tell: Tell = lambda _: None,
) -> Outcome:
    """Carry request `number` to its end and say how it ended.

    RecordError names the process that works in this home already; SilentError says that the leaver
    may still answer. `wishes` count until there is a plan.
    """
    wishes = wishes or Wishes()
    with (
        locked(home.path, home.journal) as lock,
        Journal(home.journal) as journal,
        Ledger(home.ledger) as ledger,
        Lineage(home.registry) as registry,
        leased(lock, journal, number, clock) as holder,
    ):
        desk = Desk(
            home=home,
            ground=ground,
            journal=journal,
            ledger=ledger,
            registry=registry,
            key=key,
            holder=holder,
            clock=clock,
            tell=tell,
            number=number,
        )
        home.sweep()
        desk.catch_up()
        course = desk.course
        if course.last.state != courses.RECEIVED and not course.ended:
            tell(f"goes on from {course.last.state}, by the plan that it has")
        while not desk.course.ended:
            _advance(desk, wishes)
        return outcome(home, desk.course)


def outcome(home: Home, course: courses.Course) -> Outcome:
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


_STEPS: Mapping[str, Callable[[Desk], None]] = {
    courses.PLANNED: rungs.take,
    courses.ESCALATED: rungs.take,
    courses.LOCAL_STEP: rungs.guard,
    courses.GUARDED: rounds.begin,
    courses.SERVER_STEP: rounds.begin,
    courses.POST_TRAINING: rounds.go_on,
    courses.VERIFIED: closing.promote,
}


def _advance(desk: Desk, wishes: Wishes) -> None:
    """Make one transition."""
    course = desk.course
    if course.last.state == courses.RECEIVED:
        _take_plan(desk, wishes)
        return
    if _is_promoted(desk, course):
        closing.promote(desk)  # cut short: whatever serves by now, what was begun is ended
        return
    if desk.serving().digest != desk.plan.model:
        _take_plan(desk, wishes, reason="another model was put into service meanwhile")
        return
    if course.rung >= len(desk.plan.ladder):
        closing.roll_back(desk)
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
        desk.move(courses.PLANNED, {**_planned(desk.course.plan), "reason": reason})


def _is_promoted(desk: Desk, course: courses.Course) -> bool:
    """Return whether the verified model is in the registry already."""
    if course.last.state != courses.VERIFIED:
        return False
    return any(m.digest == course.last.details["model"] for m in desk.registry.models())


def _take_plan(desk: Desk, wishes: Wishes, *, reason: str | None = None) -> None:
    now = desk.clock()
    try:
        plan = _plan(desk.home, desk.ground, desk.registry, desk.request, wishes, now)
    except RequestError as error:
        closing.refuse(desk, str(error))
        return
    told = {"reason": reason} if reason else {}
    desk.move(courses.PLANNED, {**_planned(desk.home.keep_plan(plan)), **told})


def _planned(digest: str) -> dict[str, object]:
    return {"plan": digest, "scalars": {"plan": digest}}


def _plan(
    home: Home,
    ground: Ground,
    registry: Lineage,
    request: Request,
    wishes: Wishes,
    now: datetime,
) -> Plan:
    """Plan for the serving model; a request that it cannot be done for is refused."""
    run = home.federation.run
    serving = registry.serving(run)
    if serving is None:
        raise RecordError(f"run {run!r} has no serving model in {home.registry}")
    known = {model.digest for model in registry.models() if model.run == run}
    if request.model not in known:
        raise RequestError(f"model {request.model[:12]}… is not one of this federation's")
    if request.client not in serving.clients:
        past = "was erased from it" if request.client in registry.erased() else "never was in it"
        raise RequestError(
            f"the serving model {serving.digest[:12]}… does not carry {request.client!r}: it {past}"
        )
    retained = tuple(name for name in serving.clients if name != request.client)
    if not retained:
        raise RequestError(f"{request.client!r} is the only client that the model carries")
    model, _ = states.load(home.model(serving.digest))
    return planning.make(ground, request, model=model, retained=retained, wishes=wishes, now=now)
