"""What is measured in the end: by the retained clients, the leaver if it is there, the server.

Without a model retrained without the leaver nobody can say that the result forgot as retraining
would: the answer stays open then, and the receipt says so.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from secede.erasure import course as courses
from secede.erasure import gate
from secede.erasure.bodies import Reply
from secede.erasure.desk import Desk
from secede.erasure.gate import Counts
from secede.erasure.plan import Plan
from secede.erasure.scores import Reference, Score, Verification
from secede.errors import GuardError, SilentError
from secede.federation.cost import Cost
from secede.state import State
from secede.verification.score import Score as Measured

AT_OTHERS = "right answers of the retained clients, on their own samples"
AT_LEAVER = "right answers at the client, on its own samples"
ITSELF = "The model was retrained without the client: it is its own comparison."
NOTHING = (
    "No model retrained without the client was there to compare with: whether this one forgot as "
    "retraining would stays undetermined."
)
ABSENT = "The client was not there to measure on its own samples."
RETURNED = (
    "No round of post-training was needed: the model in service is the state that the client "
    "returned, as the guard let it by."
)
UNSOUND = "What the client counted on its own samples does not add up and was left out."


def verify(desk: Desk) -> None:
    """Measure the last round's model and write down what came of it."""
    course, plan, step = desk.course, desk.plan, desk.step
    last = course.last.details
    before, (after, _) = desk.model(plan.model), desk.kept(last["state"])
    known = course.before
    assert known is not None  # the gate has passed
    was, now = Counts.of(known).overall(), Counts.of(last["counts"]).overall()
    retrained = step.rung == "retraining"
    scores = [score("usefulness", AT_OTHERS, now, was, plan.margins.level)]
    limits = [ITSELF if retrained else NOTHING]
    if step.rung == "local-step" and not last["round"]:
        limits.append(RETURNED)
    found, limit, cost = _at_leaver(desk, plan, before, after, retrained=retrained)
    scores += found
    limits += [limit] if limit else []
    scores += desk.ground.scores(plan.client, before, after)
    lost = gate.lost(was, now, plan.margins.level)
    margin = plan.margins.overall
    useful: Reply = "yes" if lost.high <= margin else "no" if lost.low > margin else "undetermined"
    forgotten: Reply = "yes" if retrained and found else "undetermined"
    verification = Verification(
        scores=tuple(scores),
        level=plan.margins.level,
        margin_points=plan.margins.points,
        forgotten=forgotten,
        useful=useful,
    )
    details: dict[str, Any] = {
        "plan": plan.digest(),
        "state": last["state"],
        "model": last["model"],
        "rounds": last["round"],
        "trained_from": last["trained_from"],
        "verification": verification.model_dump(mode="json"),
        "limits": limits,
        "holdings": list(desk.ground.holdings(plan.client)),
        "cost": cost.as_dict(),
        "scalars": {"forgotten": forgotten, "useful": useful, "rounds": last["round"]},
    }
    desk.move(courses.VERIFIED, details)


def score(
    about: str,
    measure: str,
    now: Measured,
    reference: Measured,
    level: float,
    *,
    of: str = "before",
) -> Score:
    """Return a receipt's score with its interval, beside the same of another model."""
    return Score.model_validate(
        {
            "about": about,
            "measure": measure,
            **_interval(now, level),
            "reference": Reference.model_validate({"model": of, **_interval(reference, level)}),
        }
    )


def _at_leaver(
    desk: Desk, plan: Plan, before: State, after: State, *, retrained: bool
) -> tuple[list[Score], str | None, Cost]:
    """Let the leaver count, if it is there; it is not needed for an erasure."""
    cost = Cost()
    if not desk.ground.situation(plan.client).leaver_online:
        return [], ABSENT, cost
    leaver = desk.numbers((plan.client,))
    try:
        counted = []
        for state in (before, after):
            counts, spent = desk.ground.count(leaver, state)
            counted.append(counts.overall())
            cost += replace(spent, rounds=0)
    except SilentError:
        return [], ABSENT, cost
    except GuardError:
        return [], UNSOUND, cost
    was, now = counted
    level = plan.margins.level
    if retrained:
        return [score("leaver", AT_LEAVER, now, now, level, of="retrained")], None, cost
    return [score("leaver", AT_LEAVER, now, was, level)], None, cost


def _interval(measured: Measured, level: float) -> dict[str, float]:
    low, high = measured.interval(level)
    return {"value": measured.value, "low": low, "high": high, "count": measured.count}
