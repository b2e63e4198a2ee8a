"""The first half of a rung: a start from the leaver, guarded, or from the server alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from secede import state as states
from secede.erasure import course as courses
from secede.erasure.bodies import Rung
from secede.erasure.desk import Desk
from secede.erasure.fields import moment
from secede.erasure.guard import Guard
from secede.erasure.message import pack, unpack
from secede.errors import ConfigError, GuardError, RecordError, SilentError, StateError
from secede.federation.cost import Cost
from secede.unlearning.create import create
from secede.unlearning.method import AtLeaver, Method

_REASON = 500  # characters of a reason that the journal keeps


def take(desk: Desk) -> None:
    """Take the next rung: ask the leaver, or let the server start."""
    plan, step = desk.plan, desk.step
    _, method = create(step.method, step.settings)
    server = desk.server(plan)
    local = step.rung == "local-step"
    desk.tell(f"asking {plan.client} for a local step" if local else f"starting {step.method}")
    try:
        start = method.start(server)
        if local:
            # As it would come over a wire: what does not pass there is not looked at further.
            start = replace(start, state=unpack(pack(start.state), server.global_state))
        else:
            states.check_schema(start.state, server.global_state)
            states.check_finite(start.state, f"the start of {step.method}")
    except SilentError as error:
        if plan.asked_until and desk.clock() < moment(plan.asked_until):
            raise SilentError(
                f"{error}; it is asked again until {plan.asked_until}: run the same command later"
            ) from error
        escalate(desk, "silent", str(error))
        return
    except (GuardError, StateError) as error:
        escalate(desk, "refused" if local else "broken", str(error))
        return
    except (ConfigError, RecordError) as error:  # the leaver's own state is lost, or the history
        escalate(desk, "unable", str(error))
        return
    desk.move(
        courses.LOCAL_STEP if local else courses.SERVER_STEP,
        {
            "plan": plan.digest(),
            "method": step.method,
            "state": desk.vault.put(start.state, start.memory),
            "model": states.digest(start.state),
            "report": _finite(start.report or {}),
            "cost": start.cost.as_dict(),
            "scalars": {"rung": step.rung, "method": step.method, **_bytes(start.cost)},
        },
    )


def guard(desk: Desk) -> None:
    """Hold what the leaver returned against what the server knows."""
    plan, step, found = desk.plan, desk.step, desk.course.last.details
    state, memory = desk.kept(found["state"])
    _, method = create(step.method, step.settings)
    guard = Guard(
        global_state=desk.model(plan.model),
        fresh_model=desk.ground.fresh_model,
        last=desk.ground.last(plan.client),
        radius=_radius(method),
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
            "state": desk.vault.put(safe, memory),
            "model": report.digest,
            "scalars": report.as_dict(),
        },
    )


def escalate(desk: Desk, outcome: str, reason: str) -> None:
    """Give this rung up, and say why; what the leaver sent on it is used no more."""
    plan, rung = desk.plan, desk.course.rung
    step = plan.ladder[rung]
    following = rung + 1 if rung + 1 < len(plan.ladder) else None
    told: dict[str, Rung | str] = {"rung": step.rung, "method": step.method, "outcome": outcome}
    line = " ".join(reason.split())[:_REASON]
    details = {**told, "plan": plan.digest(), "next": following, "reason": line, "scalars": told}
    desk.move(courses.ESCALATED, details)


def _radius(method: Method) -> float | None:
    made = method.step if isinstance(method, AtLeaver) else method
    radius = getattr(made, "radius", None)
    return float(radius) if isinstance(radius, int | float) else None


def _bytes(cost: Cost) -> dict[str, int]:
    return {"upload_bytes": cost.upload_bytes, "download_bytes": cost.download_bytes}


def _finite(report: Mapping[str, object]) -> dict[str, object]:
    """Return a report's scalars; numbers that JSON does not have become None."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in report.items()
        if value is None or isinstance(value, bool | int | float | str)
    }
