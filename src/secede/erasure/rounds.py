"""Post-training: rounds of the retained clients, each counted by them before the next one.

It ends as soon as it pays no more and the gate is passed, which may be before the first round. A
gate that is still shut after the last round gives the rung up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from secede import state as states
from secede.erasure import course as courses
from secede.erasure.desk import Desk
from secede.erasure.gate import Counts, Failed, Gate
from secede.erasure.plan import Margins, Plan, Step
from secede.erasure.rungs import escalate
from secede.erasure.verifying import verify
from secede.errors import ConfigError, GuardError, StateError
from secede.federation.cost import Cost
from secede.state import State
from secede.unlearning.create import create
from secede.unlearning.worth import rounds_that_pay


def begin(desk: Desk) -> None:
    """Let the retained clients count with the start itself: zero rounds may be enough."""
    found, plan, step = desk.course.last.details, desk.plan, desk.step
    state, _ = desk.kept(found["state"])
    try:
        details = _counted(desk, plan, step, state, 0, Cost())
    except (GuardError, StateError) as error:
        escalate(desk, "broken", str(error))
        return
    desk.move(courses.POST_TRAINING, {**details, "state": found["state"], "trained_from": None})


def go_on(desk: Desk) -> None:
    """Take one more round; or end, and say whether the gate was passed."""
    course, plan, step = desk.course, desk.plan, desk.step
    last = course.last.details
    if not _enough(course.rounds, course.before, plan, step):
        _round(desk, plan, step, last)
        return
    if last["model"] == plan.model:
        escalate(desk, "unchanged", "the model is the one from before: nothing was unlearnt")
    elif not last["passed"]:
        escalate(desk, "gate-failed", str(last["gate"]))
    else:
        verify(desk)


def gate_of(margins: Margins) -> Gate:
    """Return the gate with a plan's margins."""
    return Gate(
        margin=margins.overall,
        class_margin=margins.of_class,
        minimum=margins.minimum,
        level=margins.level,
    )


def _round(desk: Desk, plan: Plan, step: Step, last: Mapping[str, Any]) -> None:
    state, memory = desk.kept(last["state"])
    _, method = create(step.method, step.settings)
    number = last["round"] + 1
    try:
        after = method.recover(desk.server(plan), state, memory, number)
        details = _counted(desk, plan, step, after.state, number, after.cost)
    except (GuardError, StateError) as error:
        escalate(desk, "broken", str(error))
        return
    except ConfigError as error:  # such as too few updates for a robust mean
        escalate(desk, "unable", str(error))
        return
    kept = desk.vault.put(after.state, after.memory)
    desk.move(
        courses.POST_TRAINING, {**details, "state": kept, "trained_from": states.digest(state)}
    )
    if kept != last["state"]:
        desk.vault.drop(last["state"])


def _enough(
    rounds: tuple[Mapping[str, Any], ...], before: Mapping[str, Any] | None, plan: Plan, step: Step
) -> bool:
    last = rounds[-1]
    if last["round"] >= step.rounds:
        return True
    if last["round"] < step.least_rounds or before is None:
        return False
    if not last["passed"] or last["model"] == plan.model:
        return False
    accuracies = [Counts.of(r["counts"]).overall().value for r in rounds]
    return rounds_that_pay(Counts.of(before).overall().value, accuracies) is not None


def _counted(
    desk: Desk, plan: Plan, step: Step, state: State, number: int, cost: Cost
) -> dict[str, Any]:
    """Return a round's details: counts before and after, and what the gate says."""
    states.check_finite(state, f"the model after round {number}")
    details: dict[str, Any] = {
        "plan": plan.digest(),
        "round": number,
        "model": states.digest(state),
        "passed": None,
    }
    scalars: dict[str, Any] = {"round": number}
    # A model trained from scratch is counted once, in the end.
    if number == step.rounds or step.rung != "retraining":
        clients = desk.numbers(plan.retained)
        known = desk.course.before
        if known is None:
            before, spent = desk.ground.count(clients, desk.model(plan.model))
            known = details["before"] = before.as_dict()
            cost += replace(spent, rounds=0)
        after, spent = desk.ground.count(clients, state)
        cost += replace(spent, rounds=0)
        decided = gate_of(plan.margins).decide(Counts.of(known), after)
        passed = not isinstance(decided, Failed)
        details |= {"counts": after.as_dict(), "passed": passed}
        details["gate"] = decided.reason if isinstance(decided, Failed) else "passed"
        scalars |= {"accuracy": after.overall().value, "passed": passed}
    scalars |= {"upload_bytes": cost.upload_bytes, "download_bytes": cost.download_bytes}
    return {**details, "cost": cost.as_dict(), "scalars": scalars}
