"""Takes a plan for a request and writes it down, with the options that it came from.

Planning again, because another model serves or a state was lost, starts from the same options.
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
from secede.erasure.planning import planner
from secede.erasure.planning.options import EraseOptions, as_json, original_options
from secede.erasure.storage import progress as courses
from secede.erasure.storage.home import Home
from secede.erasure.storage.model_registry import ModelRegistry
from secede.erasure.types import describe_errors
from secede.erasure.workflow import promotion
from secede.erasure.workflow.session import ErasureSession
from secede.errors import ConfigError, RecordError, RequestError
from secede.text import short_digest

logger = logging.getLogger(__name__)


def make_plan(desk: ErasureSession, options: EraseOptions, *, reason: str | None = None) -> None:
    """Plan for the model that serves now; a request that cannot be done for is refused."""
    now, course = desk.clock(), desk.course
    options = original_options(course, options)
    try:
        plan = plan_for(
            desk.home, desk.ground, desk.registry, desk.request, options, now, course.entry.due
        )
    except RequestError as error:
        promotion.refuse(desk, str(error))
        return
    told = {"reason": reason} if reason else {}
    kept = {"options": as_json(options), **told}
    logger.info(plan.text())
    desk.move(courses.PLANNED, {**_named(desk.home.keep_plan(plan)), **kept})


def plan_again(desk: ErasureSession, options: EraseOptions, reason: str) -> None:
    """Begin the same plan again."""
    kept = as_json(original_options(desk.course, options))
    desk.move(courses.PLANNED, {**_named(desk.course.plan), "options": kept, "reason": reason})


def _named(digest: str) -> dict[str, object]:
    return {"plan": digest, "scalars": {"plan": digest}}


def plan_for(
    home: Home,
    ground: FederationBackend,
    registry: ModelRegistry,
    request: Request,
    options: EraseOptions,
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
    options = replace(options, wait=max(timedelta(0), min(options.wait, due - now)))
    try:
        return planner.make(
            ground, request, model=model, retained=retained, options=options, now=now
        )
    except ValidationError as error:
        raise ConfigError(
            f"no plan can be made of these options: {describe_errors(error)}"
        ) from error
