"""The statement of an erasure's receipt, put together from journal, plan and request.

All of it was written down before, so that it comes out the same to the byte whenever and wherever
it is built.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import ValidationError

from secede.erasure.canonical_json import to_canonical
from secede.erasure.documents import (
    MAX_ATTEMPTS,
    MAX_LEFT_OUT,
    STANDING_LIMITS,
    Attempt,
    Computed,
    Costs,
    DestroyedItem,
    FederationPart,
    Head,
    MethodPart,
    Models,
    Plan,
    Predicate,
    Remaining,
    Request,
    RequestPart,
    Scope,
    Software,
    Statement,
    Step,
    due_date,
    summarise_destroyed,
)
from secede.erasure.storage import (
    PROMOTED,
    Home,
    Journal,
    Model,
    ModelRegistry,
    Progress,
    RoundDetails,
    VerificationDetails,
)
from secede.erasure.types import Setting, describe_errors, format_time
from secede.errors import TrustError

_MEANS = {"mean": "weighted-mean", "trimmed": "trimmed-mean", "median": "median"}
# Fields of the plan that the receipt has elsewhere, or that are about other rungs.
_ELSEWHERE_IN_PLAN = {
    "version",
    "request",
    "federation",
    "client",
    "model",
    "mean",
    "ladder",
    "omitted",
    "retained",
}


def build_statement(
    progress: Progress,
    plan: Plan,
    request: Request,
    *,
    promoted: str,
    completed: str,
    destroyed: Sequence[DestroyedItem],
    head: Head,
    federation: FederationPart,
    key: str,
) -> Statement:
    """Return the statement of a verified erasure; TrustError if its parts contradict each other.

    `head` is the ledger's before the receipt's own row, `federation` what it says of that when the
    request came, signed with `key`.
    """
    verified = progress.verification
    try:
        return Statement.about(
            Predicate(
                request=_request(progress, request, key, promoted, completed),
                federation=_named(federation, verified),
                scope=verified.scope,
                method=_method(progress, plan),
                software=_software(progress),
                models=Models(before=plan.model, after=verified.model),
                destroyed=summarise_destroyed(destroyed),
                remaining=_remaining(plan),
                costs=Costs.model_validate(progress.cost.as_dict()),
                verification=verified.verification,
                ledger=head,
                limits=(*STANDING_LIMITS, *verified.limits, *_more_left_out(progress)),
            )
        )
    except ValidationError as error:
        raise TrustError(f"a receipt cannot be made of this: {describe_errors(error)}") from error


def _named(federation: FederationPart, verified: VerificationDetails) -> FederationPart:
    names = {"controller": verified.controller, "contact": verified.contact}
    return FederationPart.model_validate({**federation.model_dump(), **names})


def _request(
    progress: Progress, request: Request, key: str, promoted: str, completed: str
) -> RequestPart:
    entry = progress.entry
    return RequestPart(
        digest=entry.digest,
        key=key,
        federation=request.federation,
        client=request.client,
        trigger=request.trigger,
        issued=request.issued,
        received=format_time(entry.received),
        acknowledged=None if entry.acknowledged is None else format_time(entry.acknowledged),
        due=format_time(due_date(entry.received)),
        extended_to=format_time(entry.due) if entry.extended else None,
        promoted=promoted,
        completed=completed,
    )


def _method(progress: Progress, plan: Plan) -> MethodPart:
    step, verified = plan.ladder[progress.rung], progress.verification
    return MethodPart(
        rung=step.rung,
        name=step.method,
        parameters=step.parameters,
        plan=plan.digest(),
        settings=_settings(plan, step),
        training=verified.training,
        guard=progress.guard.scalars() if progress.guard else None,
        rounds=verified.rounds,
        mean=_MEANS[plan.mean],
        retained=len(plan.retained),
        left_out=progress.left_out()[:MAX_LEFT_OUT],
        tried_before=tuple(
            Attempt(rung=failure.rung, method=failure.method, outcome=failure.outcome)
            for failure in progress.failures[-MAX_ATTEMPTS:]
        ),
    )


def _settings(plan: Plan, step: Step) -> dict[str, Setting]:
    """Return every setting of the plan for a step by name, as `margins.overall` where nested."""
    values = {
        **plan.model_dump(mode="json", exclude=_ELSEWHERE_IN_PLAN),
        **step.model_dump(mode="json", include={"max_rounds", "min_rounds"}),
    }
    flat: dict[str, Setting] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            flat |= {f"{name}.{key}": inner for key, inner in value.items()}
        else:
            flat[name] = value
    return flat


def _software(progress: Progress) -> tuple[Computed, ...]:
    """Return what computed this rung: more than one if it continued with other software."""
    by_software: dict[bytes, tuple[Software, list[str]]] = {}
    for details in progress.computed:
        software = details.software
        key = to_canonical(software.model_dump(mode="json"))
        _, steps = by_software.setdefault(key, (software, []))
        if details.state not in steps:
            steps.append(details.state)
    return tuple(
        Computed(versions=software.versions, environment=software.environment, steps=tuple(steps))
        for software, steps in by_software.values()
    )


def _remaining(plan: Plan) -> tuple[Remaining, ...]:
    if plan.backups_until is None:
        return ()
    what = "backups of what was destroyed at the server, the model from before among them"
    return (Remaining(what=what, until=plan.backups_until, digest=plan.model),)


def _more_left_out(progress: Progress) -> tuple[str, ...]:
    more = len(progress.left_out()) - MAX_LEFT_OUT
    return (f"{more} more retained clients were left out than are named here.",) if more > 0 else ()


def client_scope(
    home: Home, journal: Journal, registry: ModelRegistry, trained: Scope, client: str
) -> Scope:
    """Return the scope of `client`: `trained`, and the post-training that it joined in between.

    `trained` covers all of its training, with its weight in the mean that ended it.
    """
    erasures = {
        progress.verification.model: progress
        for entry in journal.entries()
        if entry.state == PROMOTED
        for progress in [Progress.read(journal, entry)]
    }
    weights = {c.name: c.scope.weight for c in home.federation.clients}
    scope = trained
    for model in _ancestry(registry, home.federation.run):
        if model.digest not in erasures:  # training began so, or went on after an erasure
            scope = scope.model_copy(update={"weight": trained.weight})
            continue
        progress = erasures[model.digest]
        plan = home.load_plan(progress.plan)
        if client in plan.retained:  # else it joined later, or is the one who left
            scope = _add_erasure(scope, progress, plan, model.round, client, weights)
    return scope


def _ancestry(registry: ModelRegistry, run: str) -> list[Model]:
    """Return the serving model and those that it comes from, the oldest first."""
    models, ancestry = {model.digest: model for model in registry.models()}, list[Model]()
    model = registry.serving(run)
    while model is not None:
        ancestry.append(model)
        model = models.get(model.parent or "")
    return ancestry[::-1]


def _add_erasure(
    scope: Scope,
    progress: Progress,
    plan: Plan,
    last_round: int,
    client: str,
    weights: Mapping[str, float],
) -> Scope:
    """Add the rounds of one erasure, whose model stands at round `last_round` of the run."""
    rounds = [
        (transition.number, transition.details.round)
        for transition in progress.this_rung
        if isinstance(transition.details, RoundDetails) and transition.details.round
    ]
    joined = list[int]()
    present: tuple[str, ...] = ()
    for transition_number, round_number in rounds:
        present = progress.present(plan.retained, transition_number + 1)
        if client in present:
            joined.append(last_round - len(rounds) + round_number)
    weight = scope.weight if scope.last_round > last_round else 0.0  # it trained on since
    if joined and joined[-1] == last_round >= scope.last_round:
        shares = weights if plan.mean == "mean" else dict.fromkeys(present, 1.0)
        weight = shares[client] / (sum(shares[name] for name in present) or 1.0)
    count = scope.rounds + len(joined)
    return Scope(
        first_round=scope.first_round,
        last_round=max(scope.last_round, *joined, scope.first_round + count - 1),
        rounds=count,
        weight=weight,
        commitment=scope.commitment,
        canaries=scope.canaries,
    )
