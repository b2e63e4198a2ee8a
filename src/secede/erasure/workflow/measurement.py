"""The final measurement: by the retained clients, the leaver if it is there, and the server.

Whether the client is forgotten is what its canaries say (`canary_test.py`), or holds by
construction after retraining; the scores stand beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from secede import state as states
from secede.erasure.defences import gate, reply_checks
from secede.erasure.defences.gate import Counts
from secede.erasure.documents import CanaryPart, LeftOut, Reference, Score, Verification
from secede.erasure.receipts import client_scope
from secede.erasure.storage import (
    BaselineCounts,
    ClassCounts,
    GateResult,
    RoundDetails,
    UnusedWeights,
    VerificationDetails,
)
from secede.erasure.types import Forgotten, Verdict
from secede.erasure.workflow.checked_engine import Participants
from secede.erasure.workflow.session import ErasureSession
from secede.errors import SecedeError, StateError
from secede.state import State
from secede.text import fill_line
from secede.verification import Score as Measured
from secede.verification import rounds_that_pay

AT_OTHERS = "right answers of the retained clients, on their own samples"
AT_LEAVER = "right answers at the client, on its own samples"
ITSELF = (
    "The model was trained from scratch without the client: that it carries nothing of it holds by "
    "definition and was not measured."
)
NOTHING = (
    "No model retrained without the client was there to compare with: what is said of forgetting "
    "rests on the client's canaries alone."
)
LOST = "Retraining is not shown to keep accuracy within the margins: {reason}."
ACCEPTED = "A person accepted this: {reason}"
UNSIGNED = "The client has no key that it signs with: its readings of the canaries are unsigned."
SHOWN = "The client was sent the new model, to measure on its own premises."
ABSENT = "The client was not there to measure on its own samples."
RETURNED = (
    "No round of post-training was needed: the model in service is the state that the client "
    "returned, as accepted by the guard."
)
NOT_SENT = (
    "The new model was not sent to the client, so nothing was measured on the client's own samples."
)
FROM_BEFORE = "The guard knew the old model{trace}, not the others' mean."
TRACE = " and a distance"
ONE_MORE_ROUND = (
    "No round of post-training would have been needed; {rounds} taken, so that the state which the "
    "client returned is not the one in service."
)
FINGERPRINTS = (
    "Of each earlier model and of the client's last update at most 64 sums of their values stay at "
    "the server, so that a copy of one is recognised if a client returns it."
)
REMOVED = (
    "What the retained clients' training does not use was taken out of the model in the first "
    "round: {share:.1%} of the squared weights of its layers; {count:,} values were set to zero."
)
NOTHING_REMOVED = (
    "Nothing was taken out of what the client returned: a backdoor in it would be left to the "
    "retained clients' training."
)
KEPT = (
    "What the retained clients' training does not use was kept as the leaver returned it, because "
    "--keep-unused-weights was set: a backdoor in it would be left to their training."
)
STAYED = (
    "{count} of the model's weights could not be removed and stayed as the client returned them: "
)
CLEARED = (
    "{count} of the model's weights could not be removed and stayed as the client returned them, "
    "but for what nobody's training reaches, which was set to zero: "
)
HIDDEN = (
    "Secure aggregation hid the retained clients' updates: none was checked by itself, no robust "
    "mean was possible, and their mean alone showed which weights are unused."
)
STALE = (
    "Retained clients that took no part in the last round keep their last updates, trained from "
    "models that carried the client."
)
UNPINNED = (
    "The federation never pinned how many samples its clients have: they count as they claim."
)
UNSOUND = "What the client counted on its own samples does not add up and was left out."


class UnmeasurableError(SecedeError):
    """A model whose answers cannot be measured."""


def verify(session: ErasureSession, canaries: CanaryPart) -> None:
    """Measure the last round's model and write the scores into the journal.

    UnmeasurableError if it cannot answer the server's samples, whatever clients counted.
    """
    progress, plan, step = session.progress, session.plan, session.step
    last, baseline = progress.rounds[-1], progress.baseline
    assert baseline is not None  # the gate has passed
    assert last.gate is not None
    before, (after, _) = session.load_model(plan.model), session.load_state(last.state_file)
    old, new = read_counts(baseline).overall(), read_counts(last.gate.counts).overall()
    try:
        server_scores = session.backend.scores(plan.client, before, after)
    except StateError as error:
        raise UnmeasurableError(str(error)) from error
    measured = _at_leaver(session, before, after)
    limits = _limits(session, baseline)
    limits += [measured.limit] if measured.limit else []
    limits += _canary_limits(canaries)
    verdict = canaries.verdict(last.model)
    judged: Forgotten = "by-construction" if step.rung == "retraining" else verdict
    limits += session.backend.limits(plan.client)
    scores = [
        score_beside_reference("usefulness", AT_OTHERS, new, old, plan.margins.level),
        *measured.scores,
        *server_scores,
    ]
    loss, margin = _loss(baseline, last.gate, plan.margins.level), plan.margins.overall
    useful: Verdict = (
        "yes" if loss.high <= margin else "no" if loss.low > margin else "undetermined"
    )
    scope, federation = session.backend.scope(plan.client), session.home.federation
    session.advance(
        VerificationDetails(
            plan=plan.digest(),
            model=last.model,
            state_file=last.state_file,
            rounds=last.round,
            rounds_needed=rounds_needed(progress.rounds, baseline),
            trained_from=last.trained_from,
            verification=Verification(
                scores=tuple(scores),
                level=plan.margins.level,
                forgotten=judged,
                canaries=canaries,
                useful=useful,
            ),
            limits=tuple(limits),
            holdings=tuple(session.backend.holdings(plan.client)),
            scope=client_scope(session.home, session.journal, session.registry, scope, plan.client),
            controller=federation.controller,
            contact=federation.contact,
            training=session.backend.training(),
            left_out_count=len(progress.left_out()),
            exchange=measured.participants.exchange(),
            software=session.backend.software(),
        )
    )


def _limits(session: ErasureSession, baseline: BaselineCounts) -> list[str]:
    """Return what the receipt must say of this erasure, from what its rung did."""
    progress, plan, step = session.progress, session.plan, session.step
    first, last = progress.rounds[0], progress.rounds[-1]
    is_local = step.rung == "local-step"
    limits = [ITSELF if step.rung == "retraining" else NOTHING]
    if progress.accepted is not None:
        limits.append(LOST.format(reason=progress.accepted.reason))
        limits.append(ACCEPTED.format(reason=session.accepted_loss))
    if is_local and not last.round:
        limits.append(RETURNED)
    if progress.guard is not None and progress.guard.report.centre == "global":
        limits.append(FROM_BEFORE.format(trace=TRACE if progress.guard.report.to_reference else ""))
    if is_local and first.passed and last.round and rounds_needed((first,), baseline) == 0:
        rounds = "one was" if last.round == 1 else f"{last.round} were"
        limits.append(ONE_MORE_ROUND.format(rounds=rounds))
    left_out = progress.left_out()
    if left_out:
        limits.append(_missing(left_out, len(plan.retained)))
    if any(session.backend.samples(name) is None for name in plan.retained):
        limits.append(UNPINNED)
    limits += [] if plan.single_updates else [HIDDEN]
    limits.append(FINGERPRINTS)
    unused = [done.unused_weights for done in progress.rounds if done.unused_weights]
    limits += _unused_limits(unused)
    if is_local and not unused:
        limits.append(KEPT if plan.keep_unused_weights else NOTHING_REMOVED)
    if left_out or not last.round:
        limits.append(STALE)
    return limits


def _canary_limits(canaries: CanaryPart) -> list[str]:
    """Say who signed the readings, and what the client saw."""
    unsigned = any(each.envelope is None for each in canaries.signed_readings)
    return [UNSIGNED] * unsigned + [SHOWN] * bool(canaries.looks)


def _unused_limits(unused: Sequence[UnusedWeights]) -> list[str]:
    """Say what was taken out of the model, and which weights stayed."""
    limits = [REMOVED.format(share=u.removed_share, count=u.zeroed) for u in unused]
    limits += [_stayed(STAYED, u.kept, u.kept_count) for u in unused if u.kept]
    limits += [_stayed(CLEARED, u.cleared, u.cleared_count) for u in unused if u.cleared]
    return limits


def read_counts(counts: ClassCounts) -> Counts:
    """Return counts as the gate takes them."""
    return Counts(counts.right, counts.samples, counts.lost, counts.gained)


def _loss(baseline: BaselineCounts, result: GateResult, level: float) -> gate.Loss:
    """Return the loss of accuracy over all samples, as the gate judged it."""
    after = read_counts(result.counts)
    return gate.overall_loss(read_counts(baseline), after, level, result.variance)


def score_beside_reference(
    about: str,
    measure: str,
    measured: Measured,
    reference: Measured,
    level: float,
) -> Score:
    """Return a receipt's score with its interval, beside the same of the model from before."""
    return Score.model_validate(
        {
            "about": about,
            "measure": measure,
            **_interval(measured, level),
            "reference": Reference.model_validate(
                {"model": "before", **_interval(reference, level)}
            ),
        }
    )


def rounds_needed(rounds: Sequence[RoundDetails], baseline: BaselineCounts) -> int | None:
    """Return after how many rounds the model was good enough; None: none that was counted."""
    return next((d.round for d in rounds if d.passed and is_good_enough(d, baseline)), None)


def is_good_enough(done: RoundDetails, baseline: BaselineCounts) -> bool:
    """Return whether a round's model answers as well as the one from before."""
    level = read_counts(baseline).overall().value
    return done.gate is not None and rounds_that_pay(level, [done.gate.accuracy]) is not None


@dataclass(frozen=True)
class _LeaverMeasurement:
    """What the leaver counted on its own samples, or the limit that says why nothing."""

    participants: Participants
    scores: tuple[Score, ...] = ()
    limit: str | None = None


def _at_leaver(session: ErasureSession, before: State, after: State) -> _LeaverMeasurement:
    """Let the leaver count, if the plan says so and it is there; no erasure needs it."""
    plan, participants = session.plan, Participants.of(session)
    if not plan.measure_at_leaver:
        return _LeaverMeasurement(participants, limit=NOT_SENT)
    if not session.backend.situation(plan.client).leaver_online:
        return _LeaverMeasurement(participants, limit=ABSENT)
    (leaver,) = session.engine_numbers((plan.client,))
    counted = []
    for state in (before, after):
        participants.record_sent(states.digest(state), (plan.client,))
        tally = session.backend.tally([leaver], state)
        participants.cost_in_progress += tally.cost
        if tally.left_out.get(leaver) == reply_checks.SILENT:
            return _LeaverMeasurement(participants, limit=ABSENT)
        counts = tally.counts.get(leaver)
        if counts is None or not _as_pinned(session, counts):
            return _LeaverMeasurement(participants, limit=UNSOUND)
        counted.append(counts)
    old, new = counted
    if old.samples != new.samples:
        return _LeaverMeasurement(participants, limit=UNSOUND)
    level = plan.margins.level
    measured = score_beside_reference("leaver", AT_LEAVER, new.overall(), old.overall(), level)
    return _LeaverMeasurement(participants, scores=(measured,))


def _as_pinned(session: ErasureSession, counts: Counts) -> bool:
    """Return whether counts are of all classes and of as many samples as were pinned."""
    pinned, classes = session.backend.samples(session.plan.client), session.backend.classes
    return len(counts.samples) == classes and pinned in (None, sum(counts.samples))


def _missing(left_out: Sequence[LeftOut], total: int) -> str:
    """Name the retained clients that did not take part to the end."""
    clients = [f"{client.client} ({client.why})" for client in left_out]
    words = f"{len(left_out)} of {total} retained clients did not take part to the end: "
    return fill_line(words, clients) + "."


def _stayed(words: str, names: Sequence[str], count: int) -> str:
    """Name weights that stayed in a round in which others were taken out."""
    return fill_line(words.format(count=f"{count:,}"), names, count) + "."


def _interval(measured: Measured, level: float) -> dict[str, float]:
    low, high = measured.interval(level)
    return {"value": measured.value, "low": low, "high": high, "count": measured.count}
