"""The first half of a rung: a start from the leaver, guarded, or from the server alone."""

from __future__ import annotations

import logging
import math
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from secede import state as states
from secede.erasure.defences.fingerprints import Fingerprints
from secede.erasure.defences.guard import Guard
from secede.erasure.documents.ledger_rows import Rung
from secede.erasure.planning.planner import planned
from secede.erasure.storage import progress as courses
from secede.erasure.types import is_name, parse_time
from secede.erasure.workflow.checked_engine import with_checked_replies
from secede.erasure.workflow.participants import Participants, QuorumError
from secede.erasure.workflow.session import ErasureSession
from secede.errors import (
    ConfigError,
    DataError,
    GuardError,
    RecordError,
    SilentError,
    StateError,
)
from secede.federation.cost import Cost
from secede.text import one_line
from secede.unlearning.method import LocalStepMethod, Method, Server, Start

logger = logging.getLogger(__name__)

T = TypeVar("T")
_REASON = 500  # characters of a reason that the journal keeps


def start_rung(desk: ErasureSession) -> None:
    """Take the next rung: ask the leaver, or let the server start."""
    plan, step = desk.plan, desk.step
    method = planned(step)
    local = step.rung == "local-step"
    logger.info(f"asking {plan.client} for a local step" if local else f"starting {step.method}")
    remember(desk)
    roll = Participants.call(desk)

    def start(server: Server) -> Start:
        found = method.start(server)
        states.check_schema(found.state, server.global_state)
        states.check_finite(found.state, f"the start of {step.method}")
        return found if local else replace(found, state=states.tied(found.state, desk.shared))

    found = or_escalate(desk, roll, lambda: with_checked_replies(roll, start), refused=local)
    if found is None:
        return
    cost, model = found.cost + roll.wasted, states.digest(found.state)
    desk.move(
        courses.LOCAL_STEP if local else courses.SERVER_STEP,
        {
            "plan": plan.digest(),
            "method": step.method,
            "state": desk.vault.put(found.state, found.memory, digest=model),
            "model": model,
            "report": _numbers(found.report or {}),
            "cost": cost.as_dict(),
            **roll.details(),
            "scalars": {"rung": step.rung, "method": step.method, **_bytes(cost)},
        },
    )


def or_escalate(
    desk: ErasureSession, roll: Participants, work: Callable[[], T], *, refused: bool = False
) -> T | None:
    """Do what rests on clients' replies; None if they made it fail, and the rung was given up."""
    until = roll.plan.asked_until
    try:
        return work()
    except SilentError as error:
        if until and desk.clock() < parse_time(until):
            raise SilentError(
                f"{error}; asked again until {until}: run the same command later"
            ) from error
        outcome = "quorum" if isinstance(error, QuorumError) else "silent"
        escalate(desk, outcome, str(error), roll)
    except GuardError as error:
        escalate(desk, "refused" if refused else "broken", str(error), roll)
    except StateError as error:
        escalate(desk, "broken", str(error), roll)
    except DataError as error:  # the client's samples cannot be trained with
        escalate(desk, "broken", _strange(error), roll)
    except (ConfigError, RecordError) as error:
        # The leaver's own state is lost, or the history; or too few updates for a robust mean.
        escalate(desk, "unable", str(error), roll)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        escalate(desk, "broken", _strange(error), roll)
    except RuntimeError as error:
        if type(error) is not RuntimeError:  # out of memory and the like are nobody's reply
            raise
        escalate(desk, "broken", _strange(error), roll)
    return None


def remember(desk: ErasureSession) -> None:
    """Sketch the registered models while their files are there: an erasure destroys some."""
    sketches, movable = _sketches(desk), None
    for model in desk.registry.models():
        if model.run != desk.run or sketches.has(model.digest):
            continue
        if not desk.home.model(model.digest).exists():
            continue
        if movable is None:
            parameters = desk.ground.fresh_model(0).named_parameters()
            movable = {name for name, value in parameters if value.requires_grad}
        state = desk.model(model.digest)
        sketches.keep(model.digest, state, movable & state.keys())


def guard(desk: ErasureSession) -> None:
    """Hold what the leaver returned against what the server knows."""
    plan, step, found = desk.plan, desk.step, desk.course.last.details
    state, memory = desk.kept(found["state"])
    method = planned(step)
    guard = Guard(
        global_state=desk.model(plan.model),
        fresh_model=desk.ground.fresh_model,
        last=desk.ground.last(plan.client),
        trace=desk.ground.trace(plan.client),
        radius=_radius(method),
        ball=plan.guard.ball,
        farthest=plan.guard.farthest,
        nearest=plan.guard.nearest,
        nearest_line=plan.guard.nearest_line,
        registered={model.digest for model in desk.registry.models()},
        sketches=_sketches(desk),
    )
    try:
        safe, report = guard.check(state)
    except GuardError as error:
        escalate(desk, "refused", str(error))
        return
    desk.move(
        courses.GUARDED,
        {
            "plan": plan.digest(),
            "state": desk.vault.put(safe, memory, digest=report.digest),
            "model": report.digest,
            "scalars": report.as_dict(),
        },
    )


def escalate(
    desk: ErasureSession, outcome: str, reason: str, roll: Participants | None = None
) -> None:
    """Give this rung up, say why and what it took; what the leaver sent on it is used no more."""
    plan, rung = desk.plan, desk.course.rung
    step = plan.ladder[rung]
    following = rung + 1 if rung + 1 < len(plan.ladder) else None
    told: dict[str, Rung | str] = {"rung": step.rung, "method": step.method, "outcome": outcome}
    line = one_line(reason)[:_REASON]
    details: dict[str, Any] = {
        **told,
        "plan": plan.digest(),
        "next": following,
        "reason": line,
        "scalars": dict(told),
    }
    if roll is not None:
        details |= {**roll.details(), "cost": roll.spent.as_dict()}
        details["scalars"] |= {**_bytes(roll.spent), "left_out": len(roll.left_out)}
    desk.move(courses.ESCALATED, details)


def _radius(method: Method) -> float | None:
    made = method.step if isinstance(method, LocalStepMethod) else method
    radius = getattr(made, "radius", None)
    return float(radius) if isinstance(radius, int | float) else None


def _bytes(cost: Cost) -> dict[str, int]:
    return {"upload_bytes": cost.upload_bytes, "download_bytes": cost.download_bytes}


def _numbers(report: Mapping[str, object]) -> dict[str, object]:
    """Return a report's numbers and names; numbers that JSON does not have become None."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in report.items()
        if value is None
        or isinstance(value, bool | int | float)
        or (isinstance(value, str) and is_name(value))
    }


def _sketches(desk: ErasureSession) -> Fingerprints:
    return Fingerprints(desk.home.path / "sketches")


_BELOW = {"torch", "numpy", "safetensors", "json", "struct", "pydantic"}  # what others call


def _strange(error: Exception) -> str:
    """Say what kind of error a reply led to and where, without its words: they may be the client's.

    The place tells a fault of our own, or of a user's own method, from a client's nonsense.
    """
    places = [
        f"{frame.f_globals.get('__name__')}, line {line}"
        for frame, line in traceback.walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__")).partition(".")[0] not in _BELOW
    ]
    return f"{type(error).__name__} in {places[-1]}: what clients sent cannot be computed with"
