"""Checks of what clients send, before anything is computed with it.

Kinds, names, shapes, finite values, and sample counts against the ones that the federation pinned
when the client joined. Faults are words of our own, never the client's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, replace

import torch
from torch import Tensor

from secede import state as states
from secede.erasure.defences.state_message import pack_state, unpack_state
from secede.erasure.types import MAX_SAFE_INTEGER
from secede.errors import GuardError, SecedeError, StateError
from secede.federation.engine import Cost, Update
from secede.state import State
from secede.unlearning import LocalReport, LocalResult

SILENT, MALFORMED, NOT_FINITE = "silent", "malformed", "not-finite"
WRONG_SAMPLES, REFUSED = "wrong-samples", "refused"
MAX_PASSES = 10_000  # over its samples that a client can have made for one reply
MAX_UNPINNED_SAMPLES = 100_000_000  # of a client whose count is not pinned
_MAX_NAME_LENGTH = 1024  # of an entry
_MAX_WORD_LENGTH = 64
END_REASONS = frozenset(
    ("stop-distance", "stop-accuracy", "stop-loss", "epochs", "no-steps", "chance", "nothing-own")
)


def is_plain(state: object) -> bool:
    """Return whether `state` is a mapping of names to ordinary dense tensors."""
    return isinstance(state, Mapping) and all(
        isinstance(name, str)
        and len(name) <= _MAX_NAME_LENGTH
        and isinstance(value, Tensor)
        and value.layout == torch.strided
        and not value.is_quantized
        and not value.is_complex()
        and value.device.type != "meta"
        for name, value in state.items()
    )


def fault_of_state(state: object, template: State) -> str | None:
    """Return the fault of a state that should have the schema of `template`; None if sound."""
    if not is_plain(state):
        return MALFORMED
    assert isinstance(state, Mapping)  # that was checked
    try:
        states.check_schema(state, template)
    except StateError:
        return MALFORMED
    return None if states.is_finite(state) else NOT_FINITE


def fault_of_samples(samples: object, pinned: int | None) -> str | None:
    """Return the fault of a sample count: not the pinned one, or no count; None if sound."""
    if type(samples) is not int or not 1 <= samples <= MAX_SAFE_INTEGER:
        return WRONG_SAMPLES
    return WRONG_SAMPLES if pinned is not None and samples != pinned else None


def max_gradients(pinned: int | None) -> int:
    """Return how many gradients a client can have taken for one reply; it only claims them."""
    return MAX_PASSES * (MAX_UNPINNED_SAMPLES if pinned is None else pinned)


def cap_gradients(cost: Cost, limit: int) -> Cost:
    """Return `cost` with at most `limit` gradients: they are claimed by clients."""
    claimed = cost.gradient_samples
    return replace(cost, gradient_samples=min(claimed, limit) if is_count(claimed) else 0)


def is_count(value: object) -> bool:
    """Return whether `value` is a whole number from 0 on."""
    return type(value) is int and value >= 0


def fault_of_update(update: Update, template: State, pinned: int | None) -> str | None:
    """Return the fault of an update; None if sound."""
    return fault_of_state(update.state, template) or fault_of_samples(update.samples, pinned)


def fault_of_reply(
    reply: object, pinned: int | None, *, limit_bytes: int, template: State | None = None
) -> str | None:
    """Return the fault of a reply; given a `template`, its state must be a model. None if sound."""
    state = getattr(reply, "state", None)
    if template is not None and (fault := fault_of_state(state, template)):
        return fault
    if not is_plain(state):
        return MALFORMED
    assert isinstance(state, Mapping)
    if states.size_bytes(state) > limit_bytes:
        return MALFORMED
    gradients = getattr(reply, "gradient_samples", None)
    if type(gradients) is not int or not 0 <= gradients <= max_gradients(pinned):
        return MALFORMED
    if hasattr(reply, "samples") and (fault := fault_of_samples(reply.samples, pinned)):
        return fault
    return None if states.is_finite(state) else NOT_FINITE


def checked_result(result: LocalResult, template: State, pinned: int | None = None) -> LocalResult:
    """Return a local step's result as it would come over the wire; raise if it would not pass."""
    if not is_plain(result.state):
        raise GuardError("the returned state is not made of plain dense tensors")
    try:
        state = unpack_state(pack_state(result.state), template)
    except GuardError:
        raise
    except SecedeError as error:
        raise GuardError(f"the returned state cannot be sent: {type(error).__name__}") from error
    device = next(iter(template.values())).device
    report = checked_report(result.report, pinned)
    return replace(result, state=states.to(state, device), report=report)


def checked_report(report: object, pinned: int | None = None) -> LocalReport:
    """Return a report of names and numbers only; raise for free text and invalid numbers.

    How the step ended is one of our own words, or "other".
    """
    if not isinstance(report, LocalReport):
        raise GuardError("the returned report is not one of a local step")
    for field in fields(LocalReport):
        value = getattr(report, field.name)
        if field.name == "ended_by":
            if not isinstance(value, str) or len(value) > _MAX_WORD_LENGTH:
                raise GuardError("the returned report's ended_by is not a word")
        elif field.name != "searched" and not _is_number(value):
            raise GuardError(f"the returned report's {field.name} is not a number")
    if not is_count(report.gradient_samples):
        raise GuardError("the returned report's gradient_samples is not a count")
    if report.gradient_samples > max_gradients(pinned):
        raise GuardError("the returned report's gradient_samples are more than there can be")
    ended_by = report.ended_by if report.ended_by in END_REASONS else "other"
    return replace(report, ended_by=ended_by, searched=())


def _is_number(value: object) -> bool:
    if value is None or isinstance(value, bool):
        return True
    if isinstance(value, int):
        return abs(value) <= MAX_SAFE_INTEGER
    return isinstance(value, float) and not math.isnan(value)
