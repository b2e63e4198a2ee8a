"""What is measured in the end: by the retained clients, the leaver if it is there, the server.

Without a model retrained without the leaver nobody can say that the result forgot as retraining
would: the answer stays open then, and the receipt says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from secede import state as states
from secede.erasure.defences import gate, reply_checks
from secede.erasure.defences.gate import Counts
from secede.erasure.documents.ledger_rows import Verdict
from secede.erasure.documents.plan import Plan
from secede.erasure.documents.receipt import Reference, Score, Verification
from secede.erasure.storage import progress as courses
from secede.erasure.storage.progress import Left
from secede.erasure.workflow.participants import Participants
from secede.erasure.workflow.session import NOT_FADED, ErasureSession
from secede.state import State
from secede.text import fill_line
from secede.unlearning.stopping import rounds_that_pay
from secede.verification.score import Score as Measured

AT_OTHERS = "right answers of the retained clients, on their own samples"
AT_LEAVER = "right answers at the client, on its own samples"
ITSELF = (
    "The model was trained from scratch without the client: that it carries nothing of it holds by "
    "definition and was not measured."
)
NOTHING = (
    "No model retrained without the client was there to compare with: whether this one forgot as "
    "retraining would stays undetermined."
)
ABSENT = "The client was not there to measure on its own samples."
RETURNED = (
    "No round of post-training was needed: the model in service is the state that the client "
    "returned, as the guard let it by."
)
NOT_SENT = (
    "The new model was not sent to the client, so nothing was measured on the client's own samples."
)
FROM_BEFORE = "The guard knew the old model{trace}, not the others' mean."
TRACE = " and a distance"
SPARED = (
    "No round of post-training would have been needed; {rounds} taken, so that the state which the "
    "client returned is not the one in service."
)
SKETCH = (
    "Of each earlier model and of the client's last update at most 64 sums of their values stay at "
    "the server, so that a copy of one is recognised if a client returns it."
)
FADED = (
    "What the retained clients' training does not use was taken out of the model in the first "
    "round: {share:.1%} of the squared weights of its layers; {count:,} values were set to zero."
)
UNFADED = (
    "Nothing was taken out of what the client returned: a backdoor in it would be left to the "
    "retained clients' training."
)
KEPT = (
    "What the retained clients' training does not use was kept as the leaver returned it, as "
    "asked: a backdoor in it would be left to their training."
)
STAYED = "{count} of the model's weights could not fade and stayed as the client returned them: "
CLEARED = (
    "{count} of the model's weights could not fade and stayed as the client returned them, but for "
    "what nobody's training reaches, which was set to zero: "
)
HIDDEN = (
    "Secure aggregation hid the retained clients' updates: none was checked by itself, no robust "
    "mean was possible, and what faded was told by their mean alone."
)
STALE = (
    "Retained clients that took no part in the last round keep their last updates, trained from "
    "models that carried the client."
)
UNPINNED = (
    "The federation never pinned how many samples its clients have: they count as they claim."
)
UNSOUND = "What the client counted on its own samples does not add up and was left out."


def verify(desk: ErasureSession) -> None:
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
    for guarded in (t.details["scalars"] for t in course.this_rung if t.state == "guarded"):
        if guarded["centre"] == "global":
            limits.append(FROM_BEFORE.format(trace=TRACE if guarded.get("to_reference") else ""))
    spared = step.rung == "local-step" and course.rounds[0]["passed"] and last["round"]
    if spared and least_enough(course.rounds[:1], known) == 0:
        words = "one was" if last["round"] == 1 else f"{last['round']} were"
        limits.append(SPARED.format(rounds=words))
    left = courses.left_out(course.way)
    if left:
        limits.append(_missing(left, len(plan.retained)))
    if any(desk.ground.samples(name) is None for name in plan.retained):
        limits.append(UNPINNED)
    limits += [] if plan.single_updates else [HIDDEN]
    limits.append(SKETCH)
    faded = [each["scalars"] for each in course.rounds if "faded" in each["scalars"]]
    limits += [FADED.format(share=each["faded"], count=each["zeroed"]) for each in faded]
    for key, words in zip(NOT_FADED, (STAYED, CLEARED), strict=True):
        limits += [_stayed(each, key, words) for each in course.rounds if each.get(key)]
    if step.rung == "local-step" and not faded:
        limits.append(KEPT if plan.keep_unused_weights else UNFADED)
    if left or not last["round"]:
        limits.append(STALE)
    found, limit, sent = _at_leaver(desk, plan, before, after)
    scores += found
    limits += [limit] if limit else []
    limits += desk.ground.limits(plan.client)
    scores += desk.ground.scores(plan.client, before, after)
    lost = gate.lost(was, now, plan.margins.level)
    margin = plan.margins.overall
    useful: Verdict = (
        "yes" if lost.high <= margin else "no" if lost.low > margin else "undetermined"
    )
    forgotten: Verdict = "yes" if retrained else "undetermined"
    verification = Verification(
        scores=tuple(scores),
        level=plan.margins.level,
        margin_points=plan.margins.points,
        forgotten=forgotten,
        by_definition=retrained,
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
        "left_out": [told.model_dump(mode="json") for told in left[: courses.NAMED]],
        "cost": sent.spent.as_dict(),
        **{key: value for key, value in sent.details().items() if key == "sent"},
        "scalars": {
            "forgotten": forgotten,
            "useful": useful,
            "rounds": last["round"],
            "rounds_needed": least_enough(course.rounds, known),
            "left_out": len(left),
        },
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


def least_enough(rounds: Sequence[Mapping[str, Any]], before: Mapping[str, Any]) -> int | None:
    """Return after how many rounds the model was good enough; None: none that was counted."""
    level = Counts.of(before).overall().value
    for done in rounds:
        if done["passed"]:
            accuracy = Counts.of(done["counts"]).overall().value
            if rounds_that_pay(level, [accuracy]) is not None:
                return int(done["round"])
    return None


def _at_leaver(
    desk: ErasureSession, plan: Plan, before: State, after: State
) -> tuple[list[Score], str | None, Participants]:
    """Let the leaver count, if the plan says so and it is there; no erasure needs it."""
    roll = Participants.call(desk)
    if not plan.measure_at_leaver:
        return [], NOT_SENT, roll
    if not desk.ground.situation(plan.client).leaver_online:
        return [], ABSENT, roll
    (leaver,) = desk.numbers((plan.client,))
    counted = []
    for state in (before, after):
        roll.note_sent(states.digest(state), (plan.client,))
        tally = desk.ground.tally([leaver], state)
        roll.trying += tally.cost
        if tally.left_out.get(leaver) == reply_checks.SILENT:
            return [], ABSENT, roll
        counts = tally.counts.get(leaver)
        if counts is None or not _as_pinned(desk, plan, counts):
            return [], UNSOUND, roll
        counted.append(counts)
    was, now = counted
    if was.samples != now.samples:
        return [], UNSOUND, roll
    level = plan.margins.level
    return [score("leaver", AT_LEAVER, now.overall(), was.overall(), level)], None, roll


def _as_pinned(desk: ErasureSession, plan: Plan, counts: Counts) -> bool:
    pinned = desk.ground.samples(plan.client)
    return len(counts.samples) == desk.ground.classes and pinned in (None, sum(counts.samples))


def _missing(left: Sequence[Left], of: int) -> str:
    """Name the retained clients that did not take part to the end."""
    told = [f"{one.client} ({one.why})" for one in left]
    words = f"{len(left)} of {of} retained clients did not take part to the end: "
    return fill_line(words, told) + "."


def _stayed(done: Mapping[str, Any], key: str, words: str) -> str:
    """Name the weights that could not fade in a round in which others did."""
    count = int(done["scalars"][key])
    return fill_line(words.format(count=f"{count:,}"), done[key], count) + "."


def _interval(measured: Measured, level: float) -> dict[str, float]:
    low, high = measured.interval(level)
    return {"value": measured.value, "low": low, "high": high, "count": measured.count}
