"""Post-training: rounds of the retained clients, each counted by them before the next one.

It ends as soon as it pays no more and the gate is passed. A gate that is still shut after the last
round gives the rung up. In the first round after a start that carries the leaver, what the retained
clients' training does not use fades (`fading.py`): it answers next to none of their samples, and so
it can hold little but what the leaver put there. A second round follows, so that the model is a
plain mean again, out of which the next leaver can be taken. Whoever trusts the leaver can wish for
no fading.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from secede import state as states
from secede.erasure.canonical_json import digest
from secede.erasure.defences import gate, unused_weights
from secede.erasure.defences import weight_layout as networks
from secede.erasure.defences.gate import Counts, Failed, Gate
from secede.erasure.defences.reply_checks import MALFORMED, SAMPLES
from secede.erasure.documents.plan import Margins, Plan, Step
from secede.erasure.planning.planner import planned
from secede.erasure.storage import progress as courses
from secede.erasure.workflow.attempt import escalate, or_escalate
from secede.erasure.workflow.checked_engine import with_checked_replies
from secede.erasure.workflow.measurement import verify
from secede.erasure.workflow.participants import Participants
from secede.erasure.workflow.session import ErasureSession
from secede.federation.cost import Cost
from secede.federation.robust import by_name
from secede.state import State
from secede.unlearning.stopping import rounds_that_pay


def gate_of(margins: Margins) -> Gate:
    """Return the gate with a plan's margins."""
    return Gate(
        margin=margins.overall,
        class_margin=margins.per_class,
        minimum=margins.min_samples,
        level=margins.level,
    )


def counted(
    roll: Participants, state: State, model: str, known: Mapping[str, Any] | None
) -> tuple[dict[str, Any], Cost]:
    """Return a round's counts, what the gate says, and what the counting took.

    `model` is the state's digest, `known` what was counted with the model from before; it is
    counted again if others count now.
    """
    plan, found = roll.plan, dict[str, Any]()
    after, cost = count(roll, state, model)
    who = digest(sorted(after))
    same = known is not None and known["who"] == who
    if (
        known is None
        or not same
        or Counts.of(known).samples != gate.total([*after.values()]).samples
    ):
        before, spent = count(roll, roll.desk.model(plan.model), plan.model)
        cost += spent
        for name in after.keys() & before.keys():
            if after[name].samples != before[name].samples:
                roll.leave_out(name, SAMPLES)
        roll.require()
        both = sorted(after.keys() & before.keys() & {*roll.present})
        after = {name: after[name] for name in both}
        sums = gate.total([before[name] for name in both])
        known = found["before"] = {**sums.as_dict(), "who": digest(both)}
    now, was = gate.total([*after.values()]), Counts.of(known)
    decided = gate_of(plan.margins).decide(was, now)
    objection = None if isinstance(decided, Failed) else _veto(roll, state, was)
    failed = decided if isinstance(decided, Failed) else objection
    found |= {
        "counts": now.as_dict(),
        "passed": failed is None,
        "gate": "passed" if failed is None else failed.reason,
        "vetoed": objection is not None,
    }
    return found, cost


def count(roll: Participants, state: State, model: str) -> tuple[dict[str, Counts], Cost]:
    """Let those present count with a model; leave out who is silent or tells what cannot be."""
    desk = roll.desk
    numbers = desk.numbers(roll.present)
    roll.note_sent(model, roll.present)
    tally = desk.ground.tally(numbers, state)
    roll.trying += tally.cost
    for client, why in tally.left_out.items():
        roll.leave_out(roll.names[client], why)
    sound = dict[str, Counts]()
    for client, counts in tally.counts.items():
        name = roll.names[client]
        if len(counts.samples) != desk.ground.classes:
            roll.leave_out(name, MALFORMED)
        elif roll.pins[name] not in (None, sum(counts.samples)):
            roll.leave_out(name, SAMPLES)
        else:
            sound[name] = counts
    roll.require()
    return sound, tally.cost


def _veto(roll: Participants, state: State, retained: Counts) -> Failed | None:
    """Ask the server's own samples, where it has some."""
    ground, plan = roll.desk.ground, roll.plan
    after = ground.held_out(state)
    before = None if after is None else ground.held_out(roll.desk.model(plan.model))
    if before is None or after is None:
        return None
    return gate_of(plan.margins).veto(before, after, retained)


_NAMED = 256  # weights that stay as they are, in the journal


def begin(desk: ErasureSession) -> None:
    """Let the retained clients count with the start itself: zero rounds may be enough."""
    found = desk.course.last.details
    state, _ = desk.kept(found["state"])
    roll = Participants.call(desk)
    details = or_escalate(desk, roll, lambda: _counted(desk, roll, state, 0, Cost()))
    if details is not None:
        kept = {"state": found["state"], "trained_from": None}
        desk.move(courses.POST_TRAINING, {**details, **kept})


def go_on(desk: ErasureSession) -> None:
    """Take one more round; or end, and say whether the gate was passed."""
    course, plan, step = desk.course, desk.plan, desk.step
    last = course.last.details
    if not _enough(course.rounds, course.before, plan, step):
        _round(desk, step, last)
        return
    if last["model"] == plan.model:
        escalate(desk, "unchanged", "the model is the one from before: nothing was unlearnt")
    elif any(model.digest == last["model"] for model in desk.registry.models()):
        escalate(desk, "unchanged", "the model is one that served before: it is out of use")
    elif not last["passed"]:
        escalate(desk, "gate-failed", str(last["gate"]) + _why(course.rounds))
    else:
        verify(desk)


def _round(desk: ErasureSession, step: Step, last: Mapping[str, Any]) -> None:
    state, memory = desk.kept(last["state"])
    method = planned(step)
    number = last["round"] + 1
    roll = Participants.call(desk)

    def work() -> tuple[State, State, dict[str, Any]]:
        after = with_checked_replies(
            roll, lambda server: method.recover(server, state, memory, number)
        )
        final, told, stayed = after.state, dict[str, float](), dict[str, list[str]]()
        if number == 1 and _fades(desk.plan, step):
            final, told, stayed = _faded(desk, roll, final)
        final = states.tied(final, desk.shared)
        details = _counted(desk, roll, final, number, after.cost + roll.wasted)
        details["scalars"] |= told
        details |= stayed
        return final, after.memory, details

    done = or_escalate(desk, roll, work)
    if done is None:
        return
    final, remembered, details = done
    kept = desk.vault.put(final, remembered, digest=details["model"])
    began = str(last["model"])
    desk.ground.trained(began, final)
    desk.move(courses.POST_TRAINING, {**details, "state": kept, "trained_from": began})
    if kept != last["state"]:
        desk.vault.drop(last["state"])


def _fades(plan: Plan, step: Step) -> bool:
    """Return whether something is taken out in a rung's first round.

    Without fading what the leaver returns is trusted; what a server-side method leaves is not that.
    """
    if step.rung == "retraining" or step.max_rounds < 2:
        return False
    return not plan.keep_unused_weights or step.rung != "local-step"


def _faded(
    desk: ErasureSession, roll: Participants, state: State
) -> tuple[State, dict[str, float], dict[str, list[str]]]:
    """Return the state without what the retained clients do not use, how much, and what stays.

    Where single updates are hidden, or nobody is to be trusted alone, their mean must tell. After a
    server-side method only what nobody moves goes: it has broken what it takes apart already.
    """
    if roll.trained is None:  # a method of its own, which let nobody train
        return state, {}, {}
    start, updates = roll.trained
    single = desk.ground.situation(desk.plan.client).single_updates and desk.plan.mean == "mean"
    shown = [u.state for u in updates] if single else [by_name(desk.plan.mean)(updates)]
    local = desk.step.rung == "local-step"
    model = desk.ground.fresh_model(0)
    movable = set(desk.movable) - networks.lookups(model)
    if not local:
        found = unused_weights.fade(state, start, shown, movable=movable, weights={}, single=True)
        return found.state, {"zeroed": found.zeroed, "faded": found.share}, {}
    layers = networks.layers(model, desk.ground.classes if desk.ground.classes_told else None)
    left_out = sorted(movable & {*layers.left_out})
    movable -= layers.turned  # an input's values are no column there
    found = unused_weights.fade(state, start, shown, movable=movable, weights=layers.weights)
    unfaded = [*left_out, *found.skipped]
    cleared = [name for name in unfaded if not torch.equal(found.state[name], state[name])]
    names = {"unfaded": [name for name in unfaded if name not in cleared], "cleared": cleared}
    names = {key: each for key, each in names.items() if each}
    told = {"zeroed": found.zeroed, "faded": found.share}
    told |= {key: len(each) for key, each in names.items()}
    return found.state, told, {key: each[:_NAMED] for key, each in names.items()}


def _cleared(last: Mapping[str, Any]) -> bool:
    """Return whether something was taken out of the mean of this round."""
    return any(last["scalars"].get(key) for key in ("faded", "zeroed"))


def _why(rounds: tuple[Mapping[str, Any], ...]) -> str:
    """Return what of the model is gone, beside the gate's own words."""
    shares = [share for each in rounds if (share := each["scalars"].get("faded"))]
    told = "; {:.0%} of the layers' weights, squared, had faded in the first round"
    return told.format(shares[0]) if shares else ""


def _enough(
    rounds: tuple[Mapping[str, Any], ...], before: Mapping[str, Any] | None, plan: Plan, step: Step
) -> bool:
    last = rounds[-1]
    if last["round"] >= step.max_rounds:
        return True
    if last["round"] < step.min_rounds or before is None or _cleared(last):
        return False
    if not last["passed"] or last["model"] == plan.model:
        return False
    return _pays(rounds, before)


def _pays(rounds: tuple[Mapping[str, Any], ...], before: Mapping[str, Any]) -> bool:
    """Return whether one more round would not be worth it."""
    accuracies = [Counts.of(r["counts"]).overall().value for r in rounds]
    return rounds_that_pay(Counts.of(before).overall().value, accuracies) is not None


def _counted(
    desk: ErasureSession, roll: Participants, state: State, number: int, cost: Cost
) -> dict[str, Any]:
    """Return a round's details: counts before and after, and what the gate says."""
    plan, step = desk.plan, desk.step
    states.check_finite(state, f"the model after round {number}")
    details: dict[str, Any] = {
        "plan": plan.digest(),
        "round": number,
        "model": states.digest(state),
        "passed": None,
    }
    scalars: dict[str, Any] = {"round": number}
    # A model trained from scratch is counted once, in the end.
    if number == step.max_rounds or step.rung != "retraining":
        found, spent = counted(roll, state, details["model"], desk.course.before)
        cost += spent
        details |= found
        accuracy = Counts.of(found["counts"]).overall().value
        scalars |= {"accuracy": accuracy, "passed": found["passed"], "vetoed": found["vetoed"]}
    scalars |= {
        "upload_bytes": cost.upload_bytes,
        "download_bytes": cost.download_bytes,
        "left_out": len(roll.left_out),
    }
    return {**details, **roll.details(), "cost": cost.as_dict(), "scalars": scalars}
