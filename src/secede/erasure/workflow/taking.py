"""Takes a plan for a request and writes it down, with the wishes that it came from.

Planning again, because another model serves or a state was lost, starts from the same wishes.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import datetime, timedelta

from pydantic import ValidationError

from secede import state as states
from secede.erasure.backend import FederationBackend
from secede.erasure.documents.plan import Plan
from secede.erasure.documents.request import Request
from secede.erasure.planning import options, planner
from secede.erasure.planning.options import EraseOptions
from secede.erasure.storage import progress as courses
from secede.erasure.storage.home import Home
from secede.erasure.storage.model_registry import ModelRegistry
from secede.erasure.types import describe_errors
from secede.erasure.workflow import promotion
from secede.erasure.workflow.session import ErasureSession
from secede.errors import ConfigError, RecordError, RequestError
from secede.text import short_digest

logger = logging.getLogger(__name__)


def make_plan(desk: ErasureSession, wishes: EraseOptions, *, reason: str | None = None) -> None:
    """Plan for the model that serves now; a request that cannot be done for is refused."""
    now, course = desk.clock(), desk.course
    wishes = options.original_options(course, wishes)
    try:
        plan = plan_for(
            desk.home, desk.ground, desk.registry, desk.request, wishes, now, course.entry.due
        )
    except RequestError as error:
        promotion.refuse(desk, str(error))
        return
    told = {"reason": reason} if reason else {}
    kept = {"wishes": options.as_json(wishes), **told}
    logger.info(plan.text())
    desk.move(courses.PLANNED, {**_named(desk.home.keep_plan(plan)), **kept})


def plan_again(desk: ErasureSession, wishes: EraseOptions, reason: str) -> None:
    """Begin the same plan again."""
    kept = options.as_json(options.original_options(desk.course, wishes))
    desk.move(courses.PLANNED, {**_named(desk.course.plan), "wishes": kept, "reason": reason})


def _named(digest: str) -> dict[str, object]:
    return {"plan": digest, "scalars": {"plan": digest}}


def plan_for(
    home: Home,
    ground: FederationBackend,
    registry: ModelRegistry,
    request: Request,
    wishes: EraseOptions,
    now: datetime,
    due: datetime,
) -> Plan:
    """Plan for the serving model; a request that it cannot be done for is refused.

    Nobody is waited for beyond the day that the request is due.
    """
    run = home.federation.run
    serving = registry.serving(run)
    if serving is None:
        raise RecordError(f"run {run!r} has no serving model in {home.registry}")
    known = {model.digest for model in registry.models() if model.run == run}
    if request.model not in known:
        raise RequestError(f"model {short_digest(request.model)} is not one of this federation's")
    if request.client not in serving.clients:
        past = (
            "was erased from it"
            if request.client in registry.erased_clients()
            else "never was in it"
        )
        raise RequestError(
            f"the serving model {short_digest(serving.digest)} does not carry {request.client!r}: "
            f"it {past}"
        )
    retained = tuple(name for name in serving.clients if name != request.client)
    if not retained:
        raise RequestError(f"{request.client!r} is the only client that the model carries")
    model, _ = states.load(home.model(serving.digest))
    wishes = replace(wishes, wait=max(timedelta(0), min(wishes.wait, due - now)))
    try:
        return planner.make(ground, request, model=model, retained=retained, wishes=wishes, now=now)
    except ValidationError as error:
        raise ConfigError(
            f"no plan can be made of these options: {describe_errors(error)}"
        ) from error
