"""The options of an erasure, and the parameters of the methods that a plan states.

The journal keeps the options, so that planning again starts from them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from typing import Annotated, Any

from pydantic import StringConstraints, TypeAdapter, ValidationError

from secede.erasure.canonical_json import to_canonical
from secede.erasure.documents import GuardLimits, Margins, Mean, Step
from secede.erasure.storage import PlanDetails, Progress
from secede.erasure.types import Rung, Setting, Text, describe_errors
from secede.errors import ConfigError, RecordError
from secede.unlearning import METHODS, Method, base_name, create, settings_of

TIMEOUT = 3600.0  # seconds


@dataclass(frozen=True, kw_only=True)
class EraseOptions:
    """How to erase; the defaults suit most federations. Timeouts are in seconds."""

    methods: tuple[str, ...] = ()  # each instead of its rung's usual one; no earlier rung is taken
    from_rung: Rung | None = None  # the first one to be taken, whatever else is possible
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by method
    untrusted_leaver: bool = False  # take nothing from the leaver
    max_rounds: int = 5  # of post-training, after a local step
    max_server_rounds: int = 10  # after a server-side method
    min_rounds: int = 1  # after a local step; with 0 the leaver's own state may go into service
    mean: Mean = "mean"
    margins: Margins = field(default_factory=Margins)
    leaver_timeout: float = TIMEOUT  # for one answer of the leaver
    wait: timedelta = timedelta(0)  # for a silent leaver or a quorum, before the next rung
    guard: GuardLimits = field(default_factory=GuardLimits)
    quorum: float = 0.5  # of the retained clients' samples
    client_timeout: float = TIMEOUT  # for one answer of a retained client
    measure_at_leaver: bool = True  # its canaries, and its accuracy: it is sent the new model
    backups_until: datetime | None = None
    keep_unused_weights: bool = False  # that the retained clients' training does not use
    accept_loss: str = ""  # why a retrained model may serve that lost more than the margin


_OPTIONS = TypeAdapter(EraseOptions)
_MAX_ACCEPTED = 250  # characters: the receipt states it within a sentence
_REASON: TypeAdapter[str] = TypeAdapter(
    Annotated[Text, StringConstraints(max_length=_MAX_ACCEPTED, pattern=r"\S")]
)


def options_to_json(options: EraseOptions) -> dict[str, Any]:
    """Return options by name, fit for JSON."""
    try:
        fields: dict[str, Any] = _OPTIONS.dump_python(options, mode="json", warnings="error")
    except ValueError as error:
        raise ConfigError(f"these options cannot be written down: {error}") from error
    return fields


def check_options(options: EraseOptions) -> None:
    """Raise for options that make no sense; those in a journal are carried out as they are."""
    for name in options.methods:
        entry = METHODS.get(base_name(name))
        if entry is not None and not entry.erases:
            raise ConfigError(
                f"method {name!r} is a baseline for `secede run` and does not erase: "
                f"{entry.summary}; `secede methods` lists what erases, and what each needs"
            )
    if options.max_rounds < options.min_rounds and not options.untrusted_leaver:
        raise ConfigError(
            f"at most {options.max_rounds} rounds, but at least {options.min_rounds} after a local "
            "step: raise the maximum or lower the minimum (with a minimum of 0, the state that the "
            "leaver returned may go into service)"
        )
    _check_accepted(options.accept_loss)


def _check_accepted(reason: str) -> str:
    """Return a reason to accept a loss that a receipt can state, or none."""
    try:
        return reason and _REASON.validate_python(reason)
    except ValidationError as error:
        raise ConfigError(
            f"--accept-loss needs a reason of 1 to {_MAX_ACCEPTED} visible characters in one line"
        ) from error


def options_from_json(values: Mapping[str, Any]) -> EraseOptions:
    """Return options from some of their fields, as JSON has them; the others take defaults."""
    if unknown := values.keys() - {option.name for option in fields(EraseOptions)}:
        raise ConfigError(f"options: unknown {str(min(unknown))[:40]!r}")
    try:
        options = _OPTIONS.validate_json(json.dumps(values))
    except ValidationError as error:
        raise ConfigError(f"options: {describe_errors(error)}") from error
    except TypeError as error:
        raise ConfigError(f"options: {error}") from error
    check_options(options)
    return options


def planned_options(progress: Progress, otherwise: EraseOptions) -> EraseOptions:
    """Return the options of a request's last plan; `otherwise` before its first one."""
    return _options_of(progress, progress.plans[-1]) if progress.plans else otherwise


def differ_from_plans(progress: Progress, options: EraseOptions) -> bool:
    """Return whether a request was planned already, and never with these options."""
    options = replace(options, accept_loss="")  # counts whenever it is given
    if not progress.plans or options == EraseOptions():
        return False
    planned = (replace(_options_of(progress, plan), accept_loss="") for plan in progress.plans)
    return options_to_json(options) not in map(options_to_json, planned)


def _options_of(progress: Progress, plan: PlanDetails) -> EraseOptions:
    try:
        return _OPTIONS.validate_json(to_canonical(plan.options))
    except ValidationError as error:
        raise RecordError(
            f"the options of request {progress.entry.id} are damaged ({describe_errors(error)})"
        ) from error


def accepted_loss(progress: Progress, options: EraseOptions) -> str:
    """Return why retraining may lose accuracy, as given now or before the plan; "": it may not."""
    return _check_accepted(options.accept_loss) or planned_options(progress, options).accept_loss


def parameters(method: Method) -> dict[str, Setting]:
    """Return every parameter of a method by name, as a receipt states it."""
    return {name: _plain(value) for name, value in settings_of(method).items()}


def method_of(step: Step) -> Method:
    """Return a rung's method with the parameters of its plan, though defaults may have changed."""
    _, method = create(step.method, step.settings)
    now = parameters(method)
    changed = {key: value for key, value in step.parameters.items() if now.get(key) != value}
    if changed and changed.keys() <= now.keys():
        _, method = create(step.method, {**step.settings, **changed})
        now = parameters(method)
    if now != step.parameters:
        stated, absent = step.parameters, object()
        differing = [k for k in {**stated, **now} if stated.get(k, absent) != now.get(k, absent)]
        raise ConfigError(
            f"this erasure was planned with other parameters of {step.method} than this version "
            f"of secede has ({', '.join(differing)}): continue with the version that planned it"
        )
    return method


def _plain(value: object) -> Setting:
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return str(value)[:300] or "none"
