"""Post-training: rounds of the retained clients, each counted by them before the next one.

It ends as soon as another round is not worth it and the gate is passed. A gate that is still shut
after the last round gives the rung up. Nobody stays in a model because it is better with them:
what the last rung, retraining, loses is for a person to accept.

In the first round after a start that carries the leaver, weights that the retained clients'
training does not use are taken out (`unused_weights.py`): they answer next to none of these
clients' samples, and so can hold little but what the leaver put there. A second round follows, so
that the model is a plain mean again, out of which the next leaver can be taken. Whoever trusts the
leaver may keep unused weights.
"""

from __future__ import annotations

from dataclasses import asdict

import torch

from secede import state as states
from secede.erasure.canonical_json import digest
from secede.erasure.defences import gate, unused_weights
from secede.erasure.defences.gate import Counts
from secede.erasure.defences.reply_checks import MALFORMED, WRONG_SAMPLES
from secede.erasure.documents import CanaryPart
from secede.erasure.storage import (
    BaselineCounts,
    ClassCounts,
    GateResult,
    RoundDetails,
    UndecidedDetails,
    UnusedWeights,
)
from secede.erasure.workflow import canary_test
from secede.erasure.workflow.attempt import escalate, or_escalate, run_method
from secede.erasure.workflow.checked_engine import Participants, with_checked_replies
from secede.erasure.workflow.measurement import (
    UnmeasurableError,
    is_good_enough,
    read_counts,
    verify,
)
from secede.erasure.workflow.session import ErasureSession
from secede.errors import ConfigError
from secede.federation.engine import Cost
from secede.state import State
from secede.unlearning import Method, Recovered, Server

_MAX_WEIGHTS = 256  # weights that stay as they are, named in the journal


def check_gate(
    participants: Participants, state: State, model: str, baseline: BaselineCounts | None
) -> tuple[GateResult, Cost]:
    """Let clients count with a round's model; return what the gate says, and what it took.

    `model` is the state's digest, `baseline` what was counted with the model from before. That is
    counted again if others count now: first, so that clients can compare, or for want of a client.
    """
    plan, backend = participants.plan, participants.session.backend
    old_state = participants.session.load_model(plan.model)
    before, cost = dict[str, Counts](), Cost()
    if baseline is None or baseline.counted_by != digest(sorted(participants.present)):
        before, cost = count(participants, old_state, plan.model)
    after, cost_after = count(participants, state, model, before=old_state)
    cost += cost_after
    total = gate.total([*after.values()])
    same_clients = baseline is not None and baseline.counted_by == digest(sorted(after))
    recounted = None
    if baseline is None or not same_clients or baseline.samples != total.samples:
        if not before:
            before, cost_before = count(participants, old_state, plan.model)
            cost += cost_before
        for name in after.keys() & before.keys():
            if after[name].samples != before[name].samples:
                participants.leave_out(name, WRONG_SAMPLES)
        participants.check_quorum()
        both = sorted(after.keys() & before.keys() & {*participants.present})
        total = gate.total([after[name] for name in both])
        sums = gate.total([before[name] for name in both])
        baseline = recounted = BaselineCounts(
            right=sums.right, samples=sums.samples, counted_by=digest(both)
        )
    by_class = participants.session.step.rung != "retraining"
    variance = len(after) * backend.count_variance
    total = gate.consistent_changes(read_counts(baseline), total, variance)
    loss = gate.find_loss(
        plan.margins, read_counts(baseline), total, by_class=by_class, variance=variance
    )
    veto = None if loss else _veto(participants, state, read_counts(baseline))
    result = GateResult(
        counts=ClassCounts(**asdict(total)),
        variance=variance,
        baseline=recounted,
        passed=not (loss or veto),
        reason=loss or veto or "passed",
        vetoed=veto is not None,
    )
    return result, cost


def count(
    participants: Participants, state: State, model: str, *, before: State | None = None
) -> tuple[dict[str, Counts], Cost]:
    """Let those present count with a model; exclude silent clients and impossible counts.

    They compare with the model `before`, with which they have counted.
    """
    session = participants.session
    numbers = session.engine_numbers(participants.present)
    participants.record_sent(model, participants.present)
    tally = session.backend.tally(numbers, state, before)
    participants.cost_in_progress += tally.cost
    for client, why in tally.left_out.items():
        participants.leave_out(participants.client_names[client], why)
    sound = dict[str, Counts]()
    for client, counts in tally.counts.items():
        name = participants.client_names[client]
        if len(counts.samples) != session.backend.classes:
            participants.leave_out(name, MALFORMED)
        elif participants.pinned_samples[name] not in (None, sum(counts.samples)):
            participants.leave_out(name, WRONG_SAMPLES)
        else:
            sound[name] = counts
    participants.check_quorum()
    return sound, tally.cost


def _veto(participants: Participants, state: State, retained: Counts) -> str | None:
    """Return the loss that the server's own samples show, where it has some."""
    backend, plan = participants.session.backend, participants.plan
    after = backend.held_out(state)
    if after is None:
        return None
    before = backend.held_out(participants.session.load_model(plan.model))
    return None if before is None else gate.find_veto(plan.margins, before, after, retained)


def begin(session: ErasureSession) -> None:
    """Let the retained clients count with the start itself: zero rounds may be enough."""
    state_file = session.progress.last_model.state_file
    state, _ = session.load_state(state_file)
    participants = Participants.of(session)
    details = or_escalate(
        session,
        participants,
        lambda: _round_details(
            participants,
            state,
            number=0,
            cost=Cost(),
            state_file=state_file,
            trained_from=None,
        ),
    )
    if details is not None:
        session.advance(details)


def proceed(session: ErasureSession) -> None:
    """Take one more round; or end, and say whether the gate was passed."""
    progress, plan = session.progress, session.plan
    last = progress.rounds[-1]
    if not _is_enough(session):
        _train_round(session, last)
    elif last.model == plan.model:
        escalate(session, "unchanged", "the model is the one from before: nothing was unlearnt")
    elif any(model.digest == last.model for model in session.registry.models()):
        escalate(session, "unchanged", "the model is one that served before: it is out of use")
    elif not last.passed:
        reason = "nobody counted" if last.gate is None else last.gate.reason
        if session.step is plan.ladder[-1] and session.step.rung == "retraining":
            session.advance(UndecidedDetails(plan=plan.digest(), reason=reason))
        else:
            escalate(session, "gate-failed", reason + _removed(progress.rounds))
    else:
        _judge(session)


def decide(session: ErasureSession) -> None:
    """Go on with a retrained model that lost accuracy; LossError until a person accepts that."""
    if not session.accepted_loss:
        session.progress.check_decided()
    _judge(session)


def heed_canaries(session: ErasureSession) -> None:
    """Do what follows from a reading: verify, take more rounds, or give the rung up."""
    progress, step = session.progress, session.step
    last = progress.canary_readings[-1]
    if last.verdict != "trace-found" or step.rung == "retraining":
        _verify(session, canary_test.part(session, progress.looks, last.absent))
    elif (canary_test.rounds_wanted(progress, step.max_rounds) or 0) > last.round:
        _train_round(session, progress.rounds[-1])
    else:
        escalate(session, "trace-found", last.reason)


def _judge(session: ErasureSession) -> None:
    """Let the leaver read its canaries in the last model; verify at once if it has none."""
    if session.plan.canary_rule is None:
        _verify(session, canary_test.part(session, (), None))
    else:
        canary_test.read(session)


def _verify(session: ErasureSession, canaries: CanaryPart) -> None:
    """Measure the last model; one that cannot be measured gives the rung up."""
    try:
        verify(session, canaries)
    except UnmeasurableError as error:
        escalate(session, "broken", str(error))


def _train_round(session: ErasureSession, last: RoundDetails) -> None:
    state, memory = session.load_state(last.state_file)
    method, number = session.method, last.round + 1
    participants = Participants.of(session)

    def train() -> tuple[State, RoundDetails]:
        after = with_checked_replies(
            participants, lambda server: _recover(method, server, state, memory, number)
        )
        trained, unused = after.state, None
        if number == 1 and _removes_unused_weights(session):
            trained, unused = _without_unused_weights(session, participants, trained)
        trained = states.tied(trained, session.parameter_aliases)
        details = _round_details(
            participants,
            trained,
            number=number,
            cost=after.cost + participants.cost_wasted,
            memory=after.memory,
            trained_from=last.model,
            unused=unused,
        )
        return trained, details

    done = or_escalate(session, participants, train)
    if done is None:
        return
    trained, details = done
    session.backend.trained(last.model, trained)
    session.advance(details)
    if details.state_file != last.state_file:
        session.state_files.drop(last.state_file)


def _recover(method: Method, server: Server, state: State, memory: State, number: int) -> Recovered:
    after: object = run_method(lambda: method.recover(server, state, memory, number))
    if not isinstance(after, Recovered):
        raise ConfigError(
            f"{type(method).__name__}.recover returned {type(after).__name__}, expected a Recovered"
        )
    run_method(lambda: states.check_schema(after.state, server.global_state))
    return after


def _removes_unused_weights(session: ErasureSession) -> bool:
    """Return whether unused weights are taken out in a rung's first round.

    An option keeps what a trusted leaver returns, not what a server-side method leaves.
    """
    plan, step = session.plan, session.step
    if step.rung == "retraining" or step.max_rounds < 2:
        return False
    return not plan.keep_unused_weights or step.rung != "local-step"


def _without_unused_weights(
    session: ErasureSession, participants: Participants, state: State
) -> tuple[State, UnusedWeights | None]:
    """Return the state without weights that the retained clients do not use, and what went.

    Where single updates are hidden, or nobody is to be trusted alone, their mean must tell.
    """
    if participants.last_round is None:  # a method of its own, which let nobody train
        return state, None
    start, updates = participants.last_round
    plan = session.plan
    is_single = session.backend.situation(plan.client).single_updates and plan.mean == "mean"
    shown = [update.state for update in updates] if is_single else [session.mean(updates)]
    model = session.backend.fresh_model(0)
    result = unused_weights.remove_after_round(
        state,
        start,
        shown,
        model=model,
        trainable=session.trainable,
        classes=session.backend.classes if session.backend.classes_told else None,
        is_local=session.step.rung == "local-step",
    )
    stayed = result.skipped
    cleared = [name for name in stayed if not torch.equal(result.state[name], state[name])]
    kept = [name for name in stayed if name not in cleared]
    return result.state, UnusedWeights(
        removed_share=result.share,
        zeroed=result.zeroed,
        kept=tuple(kept[:_MAX_WEIGHTS]),
        kept_count=len(kept),
        cleared=tuple(cleared[:_MAX_WEIGHTS]),
        cleared_count=len(cleared),
    )


def _removed(rounds: tuple[RoundDetails, ...]) -> str:
    """Return how much of the model was taken out, as the end of a reason."""
    for done in rounds:
        if done.unused_weights and done.unused_weights.removed_share:
            share = done.unused_weights.removed_share
            return f"; {share:.0%} of the layers' squared weights were removed in the first round"
    return ""


def _is_enough(session: ErasureSession) -> bool:
    """Return whether no more round is to be taken on this rung."""
    rounds, baseline, step = session.progress.rounds, session.progress.baseline, session.step
    last = rounds[-1]
    wanted = canary_test.rounds_wanted(session.progress, step.max_rounds)
    if wanted is not None:
        return last.round >= wanted
    if last.round >= step.max_rounds:
        return True
    if last.round < step.min_rounds or baseline is None:
        return False
    if last.unused_weights is not None and last.unused_weights.changed:
        return False
    if not last.passed or last.model == session.plan.model:
        return False
    return any(is_good_enough(done, baseline) for done in rounds)


def _round_details(
    participants: Participants,
    state: State,
    *,
    number: int,
    cost: Cost,
    trained_from: str | None,
    state_file: str | None = None,
    memory: State | None = None,
    unused: UnusedWeights | None = None,
) -> RoundDetails:
    """Let the clients count with a round's model; keep it and return the round's details.

    `state_file` is where it is kept already, `memory` what its method remembers.
    """
    session, plan, step = participants.session, participants.plan, participants.session.step
    states.check_finite(state, f"the model after round {number}")
    model = states.digest(state)
    result = None
    # A model trained from scratch is counted once, in the end.
    if number == step.max_rounds or step.rung != "retraining":
        result, counting = check_gate(participants, state, model, session.progress.baseline)
        cost += counting
    return RoundDetails(
        plan=plan.digest(),
        round=number,
        model=model,
        state_file=state_file or session.state_files.put(state, memory, digest=model),
        trained_from=trained_from,
        gate=result,
        unused_weights=unused,
        exchange=participants.exchange(cost),
        software=session.backend.software(),
    )
