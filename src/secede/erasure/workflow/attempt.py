"""The first half of a rung: a start from the leaver, guarded, or from the server alone.

A rung is given up for what clients send, for what a method refuses, and for what a plugin, the
user's network or a method with replies of its own raises (`run_method`). Any other exception is a
fault of this package: it stops the command, and the erasure resumes once that is fixed.
"""

from __future__ import annotations

import logging
import math
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

import torch

from secede import state as states
from secede.erasure.defences.guard import Guard
from secede.erasure.storage import (
    MAX_REASON,
    EscalationDetails,
    GuardDetails,
    LocalStepDetails,
    ServerStepDetails,
)
from secede.erasure.types import MAX_SAFE_INTEGER, Scalar, is_name, parse_time
from secede.erasure.workflow.checked_engine import Participants, QuorumError, with_checked_replies
from secede.erasure.workflow.session import ErasureSession
from secede.errors import (
    ConfigError,
    DataError,
    GuardError,
    RecordError,
    SecedeError,
    SilentError,
    StateError,
)
from secede.text import one_line
from secede.unlearning import (
    OWN_REPLY_MODULES,
    LocalStepMethod,
    Method,
    Server,
    Start,
    checked_start,
)

logger = logging.getLogger(__name__)

T = TypeVar("T")


class MethodError(SecedeError):
    """A method's code raised: over replies that it cannot compute with, or by a fault of its own.

    Its text has the kind of error and the place, never the words: they may be the client's.
    """


def start_rung(session: ErasureSession) -> None:
    """Take the next rung: ask the leaver, or let the server start."""
    plan, step = session.plan, session.step
    method, is_local = session.method, step.rung == "local-step"
    logger.info(f"asking {plan.client} for a local step" if is_local else f"starting {step.method}")
    record_fingerprints(session)
    participants = Participants.of(session)

    def start(server: Server) -> Start:
        start = run_method(lambda: _start(method, server, step.method))
        if is_local:
            return start
        return replace(start, state=states.tied(start.state, session.parameter_aliases))

    start_made = or_escalate(
        session,
        participants,
        lambda: with_checked_replies(participants, start),
        leaver_sends=is_local,
    )
    if start_made is None:
        return
    digest = states.digest(start_made.state)
    kind = LocalStepDetails if is_local else ServerStepDetails
    session.advance(
        kind(
            plan=plan.digest(),
            rung=step.rung,
            method=step.method,
            model=digest,
            state_file=session.state_files.put(start_made.state, start_made.memory, digest=digest),
            report=_scalars(start_made.report or {}),
            exchange=participants.exchange(start_made.cost + participants.cost_wasted),
            software=session.backend.software(),
        )
    )


def _start(method: Method, server: Server, name: str) -> Start:
    start = checked_start(method, server)
    if not isinstance(start.state, Mapping):
        raise MethodError(
            f"{name} starts with {type(start.state).__name__}, expected a state: its code is at "
            "fault"
        )
    states.check_schema(start.state, server.global_state)
    states.check_finite(start.state, f"the start of {name}")
    return start


# Libraries call what they are given: an exception that passes through them is of their caller.
_LIBRARIES = {"torch", "numpy", "safetensors", "pydantic", "scipy", "sklearn", "flwr", "nvflare"}


def run_method(work: Callable[[], T]) -> T:
    """Run a method's code; MethodError instead of an exception that is not ours to answer for.

    That is one in a plugin (`package.module:Class`), in the user's network, or in a method that
    computes with replies of a form of its own: none of these may stop an erasure that has further
    rungs. Errors of the machine (memory, disk) pass, as no other method would do better, and so
    does any bug of secede itself: it stops the command, which resumes once it is fixed. The
    network also runs where there is no method, as clients count and the server measures: what it
    raises there stops the command.
    """
    try:
        return work()
    except (SecedeError, MemoryError, OSError):
        raise
    except Exception as error:
        places = [place for place in _places(error) if _is_foreign(place[0])]
        if not places or isinstance(error, torch.OutOfMemoryError):
            raise
        logger.debug("a method raised", exc_info=error)
        module, line = places[-1]
        raise MethodError(
            f"{type(error).__name__} in {module}, line {line}: the method cannot compute with what "
            "clients sent, or its code is at fault"
        ) from error


def or_escalate(
    session: ErasureSession,
    participants: Participants,
    work: Callable[[], T],
    *,
    leaver_sends: bool = False,
) -> T | None:
    """Do what rests on clients' replies; None if it failed and the rung was given up.

    Only errors that clients' replies or a method raise on purpose give a rung up, and those of a
    method's code (`run_method`). A silent client is waited for first, as long as the plan says.
    """
    try:
        return work()
    except SilentError as error:
        until = participants.plan.wait_until
        if until and session.clock() < parse_time(until):
            raise SilentError(
                f"{error}; asked again until {until}: run the same command later"
            ) from error
        outcome = "quorum" if isinstance(error, QuorumError) else "silent"
        escalate(session, outcome, str(error), participants)
    except GuardError as error:
        escalate(session, "refused" if leaver_sends else "broken", str(error), participants)
    except (MethodError, StateError) as error:
        escalate(session, "broken", str(error), participants)
    except DataError as error:  # the client's samples cannot be trained with
        module, line = _origin(error)
        reason = f"{type(error).__name__} in {module}, line {line}: samples cannot be trained with"
        escalate(session, "broken", reason, participants)
    except (ConfigError, RecordError) as error:
        # The leaver's own state is lost, or the history; or too few updates for a robust mean.
        escalate(session, "unable", str(error), participants)
    return None


def record_fingerprints(session: ErasureSession) -> None:
    """Fingerprint the registered models while their files are there: an erasure destroys some."""
    for model in session.registry.models():
        if model.run != session.run:
            continue
        if not session.fingerprints.has(model.digest):
            if not session.home.model_path(model.digest).exists():
                continue
            state = session.load_model(model.digest)
            session.fingerprints.save(model.digest, state, session.trainable & state.keys())
        session.append_row(session.fingerprints.row("model", model.digest))


def guard(session: ErasureSession) -> None:
    """Hold what the leaver returned against what the server knows."""
    plan, start = session.plan, session.progress.start
    state, memory = session.load_state(start.state_file)
    guard = Guard(
        global_state=session.load_model(plan.model),
        fresh_model=session.backend.fresh_model,
        last=session.backend.last_update(plan.client),
        trace=session.backend.update_trace(plan.client),
        radius=_radius(session.method),
        ball=plan.guard.radius,
        max_distance=plan.guard.max_distance,
        min_distance=plan.guard.min_distance,
        min_line_distance=plan.guard.min_line_distance,
        registered={model.digest for model in session.registry.models()},
        fingerprints=session.fingerprints,
    )
    try:
        safe_state, report = guard.check(state)
    except GuardError as error:
        escalate(session, "refused", str(error))
        return
    session.advance(
        GuardDetails(
            plan=plan.digest(),
            model=report.digest,
            state_file=session.state_files.put(safe_state, memory, digest=report.digest),
            report=report,
            software=session.backend.software(),
        )
    )


def escalate(
    session: ErasureSession,
    outcome: str,
    reason: str,
    participants: Participants | None = None,
) -> None:
    """Record that this rung failed, why and at what cost; discard what the leaver sent on it."""
    plan, rung = session.plan, session.progress.rung
    step = plan.ladder[rung]
    session.advance(
        EscalationDetails(
            plan=plan.digest(),
            rung=step.rung,
            method=step.method,
            outcome=outcome,
            reason=one_line(reason)[:MAX_REASON],
            next_rung=rung + 1 if rung + 1 < len(plan.ladder) else None,
            exchange=participants.exchange() if participants else None,
        )
    )


def _radius(method: Method) -> float | None:
    """Return the radius that a method keeps its step in, if it has one."""
    step = method.step if isinstance(method, LocalStepMethod) else method
    radius = getattr(step, "radius", None)
    return float(radius) if isinstance(radius, int | float) else None


def _scalars(report: Mapping[str, object]) -> dict[str, Scalar]:
    """Return a report's numbers and names; numbers that JSON does not have become None."""
    scalars = dict[str, Scalar]()
    for name, value in report.items():
        if isinstance(value, bool) or value is None or (isinstance(value, str) and is_name(value)):
            scalars[name] = value
        elif isinstance(value, int):
            scalars[name] = value if abs(value) <= MAX_SAFE_INTEGER else None
        elif isinstance(value, float):
            scalars[name] = value if math.isfinite(value) else None
    return scalars


def _places(error: Exception) -> list[tuple[str, int]]:
    """Return the modules and lines that an exception came through, outermost first."""
    return [
        (str(frame.f_globals.get("__name__")), line)
        for frame, line in traceback.walk_tb(error.__traceback__)
    ]


def _is_library(module: str) -> bool:
    package = module.partition(".")[0]
    return package in _LIBRARIES or package in sys.stdlib_module_names


def _is_foreign(module: str) -> bool:
    if module.partition(".")[0] == "secede":
        return module in OWN_REPLY_MODULES
    return not _is_library(module)


def _origin(error: Exception) -> tuple[str, int]:
    """Return the module and line that an exception came from, libraries passed over."""
    places = _places(error)
    return ([place for place in places if not _is_library(place[0])] or places)[-1]
