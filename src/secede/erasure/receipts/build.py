"""What the receipt of an erasure states, put together from journal, plan and registry.

All of it was written down before, so that it comes out the same to the byte however often and
wherever it is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import ValidationError

from secede.erasure.canonical_json import to_canonical
from secede.erasure.documents import request as deadline
from secede.erasure.documents.ledger_rows import Head
from secede.erasure.documents.plan import Plan, Step
from secede.erasure.documents.receipt import (
    LIMITS,
    Attempt,
    Computed,
    Costs,
    Destroyed,
    DestroyedItem,
    LeftOut,
    MethodPart,
    Models,
    Predicate,
    Remaining,
    RequestPart,
    Scope,
    Setting,
    Sha256,
    Statement,
    Subject,
    Verification,
    summarise,
)
from secede.erasure.storage import progress
from secede.erasure.storage.progress import Progress
from secede.erasure.types import describe_errors, format_time
from secede.erasure.workflow.session import ErasureSession
from secede.errors import TrustError

MEANS = {"mean": "weighted-mean", "trimmed": "trimmed-mean", "median": "median"}
NAMED = 512  # of those left out that the receipt names
# Said elsewhere in the receipt, or of other rungs.
_ELSEWHERE = {"version", "request", "federation", "client", "model", "mean", "ladder", "retained"}
_OF_STEP = {"rung", "method", "settings", "parameters", "needs", "upload_bytes", "download_bytes"}


def statement(
    desk: ErasureSession,
    *,
    promoted: str,
    completed: str,
    gone: Sequence[DestroyedItem],
    head: Head,
) -> Statement:
    """Return what the receipt says; TrustError if its parts contradict each other."""
    course, plan, step = desk.course, desk.plan, desk.step
    done = course.last.details
    try:
        return build(
            request=_request(desk, course, promoted, completed),
            scope=Scope.model_validate_json(to_canonical(done["scope"])),
            method=_method(course, plan, step),
            software=_software(course),
            models=Models(before=plan.model, after=done["model"]),
            destroyed=summarise(gone),
            remaining=_remaining(plan),
            costs=Costs.model_validate(course.cost.as_dict()),
            verification=Verification.model_validate_json(to_canonical(done["verification"])),
            ledger=head,
            further_limits=(*done["limits"], *_further(course)),
        )
    except ValidationError as error:
        raise TrustError(f"a receipt cannot be made of this: {describe_errors(error)}") from error


def settings_of(plan: Plan, step: Step) -> dict[str, Setting]:
    """Return every setting of the plan for a rung by its name, parts of parts with a dot."""
    whole = plan.model_dump(mode="json", exclude={*_ELSEWHERE, "omitted"})
    own = step.model_dump(mode="json", exclude=_OF_STEP)
    flat: dict[str, Setting] = {}
    for name, value in {**whole, **own}.items():
        if isinstance(value, dict):
            flat |= {f"{name}.{inner}": part for inner, part in value.items()}
        else:
            flat[name] = value
    return flat


def _request(desk: ErasureSession, course: Progress, promoted: str, completed: str) -> RequestPart:
    entry, request = course.entry, desk.request
    return RequestPart(
        digest=entry.digest,
        federation=request.federation,
        client=request.client,
        trigger=request.trigger,
        issued=request.issued,
        received=format_time(entry.received),
        acknowledged=None if entry.acknowledged is None else format_time(entry.acknowledged),
        due=format_time(deadline.due_date(entry.received)),
        extended_to=format_time(entry.due) if entry.extended else None,
        promoted=promoted,
        completed=completed,
    )


def _method(course: Progress, plan: Plan, step: Step) -> MethodPart:
    tried = [
        Attempt(rung=failed["rung"], method=failed["method"], outcome=failed["outcome"])
        for failed in course.failures[-16:]
    ]
    guarded = [t.details["scalars"] for t in course.this_rung if t.state == "guarded"]
    left = progress.left_out(course.way)
    return MethodPart(
        rung=step.rung,
        name=step.method,
        parameters=step.parameters,
        plan=plan.digest(),
        settings=settings_of(plan, step),
        training=course.last.details["training"],
        guard=dict(guarded[-1]) if guarded else None,
        rounds=course.last.details["rounds"],
        mean=MEANS[plan.mean],
        retained=len(plan.retained),
        left_out=tuple(LeftOut(client=one.client, why=one.why) for one in left[:NAMED]),
        tried_before=tuple(tried),
    )


def _software(course: Progress) -> list[Computed]:
    """Return what computed this rung: more than one if it went on with other software."""
    found: dict[bytes, tuple[dict[str, Any], list[str]]] = {}
    for transition in course.this_rung:
        told = transition.details.get("software")
        if told is None:
            continue
        steps = found.setdefault(to_canonical(told), (told, []))[1]
        if transition.state not in steps:
            steps.append(transition.state)
    return [Computed.model_validate({**told, "steps": tuple(s)}) for told, s in found.values()]


def _remaining(plan: Plan) -> list[Remaining]:
    if plan.backups_until is None:
        return []
    words = "backups of what was destroyed at the server, the model from before among them"
    return [Remaining(what=words, until=plan.backups_until, digest=plan.model)]


def _further(course: Progress) -> list[str]:
    more = len(progress.left_out(course.way)) - NAMED
    return [f"{more} more retained clients were left out than are named here."] if more > 0 else []


def build(
    *,
    request: RequestPart,
    scope: Scope,
    method: MethodPart,
    software: Iterable[Computed],
    models: Models,
    destroyed: Iterable[Destroyed],
    remaining: Iterable[Remaining],
    costs: Costs,
    verification: Verification,
    ledger: Head,
    further_limits: Iterable[str] = (),
) -> Statement:
    """Return the statement; parts that contradict each other are refused."""
    try:
        predicate = Predicate(
            request=request,
            scope=scope,
            method=method,
            software=tuple(software),
            models=models,
            destroyed=tuple(destroyed),
            remaining=tuple(remaining),
            costs=costs,
            verification=verification,
            ledger=ledger,
            limits=(*LIMITS, *further_limits),
        )
        subject = Subject(digest=Sha256(sha256=models.after))
        return Statement(subject=(subject,), predicate=predicate)
    except ValidationError as error:
        raise TrustError(f"a receipt cannot be made of this: {describe_errors(error)}") from error
