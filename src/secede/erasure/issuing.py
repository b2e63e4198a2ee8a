"""What the receipt of an erasure states, put together from journal, plan and registry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from secede.erasure import receipt
from secede.erasure.canonical import canonical
from secede.erasure.chain import Head
from secede.erasure.course import Course
from secede.erasure.desk import Desk
from secede.erasure.fields import stamp
from secede.erasure.plan import Plan, Step
from secede.erasure.predicate import (
    Attempt,
    Costs,
    Destroyed,
    MethodPart,
    Models,
    Remaining,
    RequestPart,
)
from secede.erasure.registry import Model
from secede.erasure.scores import Verification
from secede.erasure.statement import Statement

WORDS = {
    "leaver-state": "what the client returned from its local step",
    "guarded-state": "the same as post-training started from it",
    "server-state": "the state that the server started from",
    "intermediate-state": "a state between two rounds of post-training",
    "model-before": "a model that carried the client, its file at the server",
    "last-update": "the client's last update, its file at the server",
    "history": "the updates that the server had kept while training",
}
MEANS = {"mean": "weighted-mean", "trimmed": "trimmed-mean", "median": "median"}
LISTED = 12  # of a kind that the receipt lists one by one; more become one entry


@dataclass(frozen=True)
class Gone:
    """What was destroyed, and when that was written down."""

    what: str
    digest: str | None
    at: str


def statement(desk: Desk, model: Model, gone: Sequence[Gone], head: Head) -> Statement:
    """Return what the receipt of a promoted erasure says; all of it was written down before."""
    course, plan, step = desk.course, desk.plan, desk.step
    done = course.last.details
    return receipt.build(
        request=_request(desk, course, model.added),
        scope=desk.ground.scope(plan.client),
        method=_method(course, plan, step),
        software=desk.ground.software(),
        models=Models(before=plan.model, after=model.digest),
        destroyed=_destroyed(gone),
        remaining=_remaining(plan),
        costs=Costs.model_validate(course.cost.as_dict()),
        verification=Verification.model_validate_json(canonical(done["verification"])),
        ledger=head,
        further_limits=done["limits"],
    )


def _request(desk: Desk, course: Course, completed: str) -> RequestPart:
    entry, request = course.entry, desk.request
    return RequestPart(
        digest=entry.digest,
        federation=request.federation,
        client=request.client,
        trigger=request.trigger,
        issued=request.issued,
        received=stamp(entry.received),
        acknowledged=None if entry.acknowledged is None else stamp(entry.acknowledged),
        due=stamp(entry.due),
        extended_to=stamp(entry.due) if entry.extended else None,
        completed=completed,
    )


def _method(course: Course, plan: Plan, step: Step) -> MethodPart:
    tried = [
        Attempt(rung=failed["rung"], method=failed["method"], outcome=failed["outcome"])
        for failed in course.failures[-16:]
    ]
    return MethodPart(
        rung=step.rung,
        name=step.method,
        parameters=step.parameters,
        rounds=course.last.details["rounds"],
        mean=MEANS[plan.mean],
        retained=len(plan.retained),
        tried_before=tuple(tried),
    )


def _destroyed(gone: Sequence[Gone]) -> list[Destroyed]:
    listed = []
    for what, words in WORDS.items():
        same = [thing for thing in gone if thing.what == what]
        if len(same) > LISTED:
            listed.append(Destroyed(what=f"{words}: {len(same)} of them", at=same[-1].at))
        else:
            listed += [Destroyed(what=words, at=g.at, digest=g.digest) for g in same]
    return listed


def _remaining(plan: Plan) -> list[Remaining]:
    if plan.backups_until is None:
        return []
    words = "backups of what was destroyed at the server, the model from before among them"
    return [Remaining(what=words, until=plan.backups_until, digest=plan.model)]
