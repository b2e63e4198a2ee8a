"""The test of canaries: read by the leaver after a rung's last round, it may ask for more.

A trace leads to the rung's remaining rounds, to as many again where that helped, and then to the
next rung; retraining ends it. The verdict follows from the plan's rule and the counts alone.
"""

from __future__ import annotations

import logging

from secede.erasure.documents import (
    ABSENT,
    NO_CANARIES,
    NOT_ASKED,
    UNSOUND,
    CanaryPart,
    Look,
    Plan,
    SignedReading,
    check_reading,
)
from secede.erasure.storage import CanariesDetails, Progress
from secede.erasure.workflow.checked_engine import Participants
from secede.erasure.workflow.session import ErasureSession
from secede.errors import ConfigError, DataError, GuardError, RecordError, SilentError, TrustError
from secede.state import State

logger = logging.getLogger(__name__)


def read(session: ErasureSession) -> None:
    """Let the leaver read its canaries in the last round's model, and write down what they say."""
    plan = session.plan
    progress, participants = session.progress, Participants.of(session)
    last = progress.rounds[-1]
    before, absent = progress.canaries_before, None
    if before is None:
        old = session.load_model(plan.model)
        before, absent = _read(session, participants, old, plan.model, None)
    after = None
    if absent is None:
        new, _ = session.load_state(last.state_file)
        after, absent = _read(session, participants, new, last.model, before)
    step, look = session.step, None
    if after is not None:
        look = Look(rung=step.rung, method=step.method, round=last.round, after=after)
    looks = (*progress.looks, look) if look else progress.looks
    said = part(session, looks, absent, before=before)
    reason = said.judgement(last.model).reason
    logger.info(reason)
    session.advance(
        CanariesDetails(
            plan=plan.digest(),
            model=last.model,
            round=last.round,
            before=None if before == progress.canaries_before else before,
            look=look,
            absent=absent,
            verdict=said.verdict(last.model),
            reason=reason,
            exchange=participants.exchange(),
        )
    )


def rounds_wanted(progress: Progress, max_rounds: int) -> int | None:
    """Return after how many rounds to look again; None if there was no trace on this rung.

    First the rung's last round, then as many again if the drawn candidates' ranks came half the way
    to chance, or more, since the look before.
    """
    looks = [each for each in progress.canary_readings if each.verdict == "trace-found"]
    if not looks:
        return None
    if looks[-1].round < max_rounds:
        return max_rounds
    earlier = looks[-2].look if len(looks) > 1 else None
    reference = earlier.after if earlier else progress.canaries_before
    if looks[-1].look is None or reference is None:
        return max_rounds
    is_half = _below_chance(looks[-1].look.after) <= _below_chance(reference) / 2
    return 2 * max_rounds if is_half else max_rounds


def _below_chance(signed: SignedReading) -> float:
    ranks = signed.reading.counts().ranks
    return ranks.chance_mean - ranks.mean


def _read(
    session: ErasureSession,
    participants: Participants,
    state: State,
    model: str,
    before: SignedReading | None,
) -> tuple[SignedReading | None, str | None]:
    """Return the leaver's reading of a model, or why there is none; no erasure needs it."""
    plan, backend = session.plan, session.backend
    if not backend.situation(plan.client).leaver_online:
        return None, ABSENT
    participants.record_sent(model, (plan.client,))
    try:
        signed, cost = backend.read_canaries(plan.client, state, plan, model)
        participants.cost_in_progress += cost
        _check(session, plan, signed, model)
        if before is not None and _groups(before) != _groups(signed):
            raise GuardError("its canaries have other numbers of candidates than before")
    except SilentError:
        return None, ABSENT
    except (ConfigError, DataError, GuardError, RecordError, TrustError) as error:
        logger.warning(f"the canaries of {plan.client} were not read: {error}")
        return None, UNSOUND
    return signed, None


def _groups(signed: SignedReading) -> object:
    return signed.reading.counts().ranks.groups


def _check(session: ErasureSession, plan: Plan, signed: SignedReading, model: str) -> None:
    """Raise unless a reading is of this erasure, model and commitment, and its client's."""
    reading, committed = signed.reading, session.backend.scope(plan.client).canaries
    if committed is None:
        raise GuardError(NO_CANARIES)
    about = (reading.federation, reading.client, reading.request, reading.model)
    of = (reading.root, reading.count)
    if about != (plan.federation, plan.client, plan.request, model) or of != (
        committed.commitment.root,
        committed.commitment.samples,
    ):
        raise GuardError("it is of other canaries, another model or another erasure")
    key = session.home.client_keys().get(plan.client)
    if signed.envelope is not None and key is None:
        raise GuardError("it is signed, and the client has no key here")
    check_reading(signed, key)


def part(
    session: ErasureSession,
    looks: tuple[Look, ...],
    absent: str | None,
    before: SignedReading | None = None,
) -> CanaryPart:
    """Return what the receipt says of the canaries."""
    plan = session.plan
    if plan.canary_rule is None:
        planted = session.backend.scope(plan.client).canaries is not None
        return CanaryPart(absent=NOT_ASKED if planted else NO_CANARIES)
    return CanaryPart(
        rule=plan.canary_rule,
        before=before or session.progress.canaries_before,
        looks=looks,
        absent=absent,
    )
