"""Wishes as the journal keeps them, so that planning again starts from what was asked for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from typing import Any

from pydantic import TypeAdapter, ValidationError

from secede.erasure.canonical_json import to_canonical
from secede.erasure.documents.plan import GuardLimits, Margins, Mean
from secede.erasure.storage.progress import Progress
from secede.erasure.types import describe_errors
from secede.errors import ConfigError, RecordError
from secede.unlearning.registry import METHODS, base_name

TIMEOUT = 3600.0


@dataclass(frozen=True, kw_only=True)
class EraseOptions:
    """What whoever runs the erasure asks for; the defaults suit most."""

    methods: tuple[str, ...] = ()  # each instead of its rung's usual one
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    untrusted_leaver: bool = False  # take nothing from the leaver
    max_rounds: int = 5  # of post-training at most, after a local step
    max_server_rounds: int = 10  # after a server-side method
    min_rounds: int = 1  # after a local step; with 0 the leaver's own state may be what serves
    mean: Mean = "mean"
    margins: Margins = field(default_factory=Margins)
    leaver_timeout: float = TIMEOUT
    wait: timedelta = timedelta(0)  # for a silent leaver or a quorum, before the next rung
    guard: GuardLimits = field(default_factory=GuardLimits)
    quorum: float = 0.5  # of the retained clients' samples
    client_timeout: float = TIMEOUT
    measure_at_leaver: bool = False
    backups_until: datetime | None = None
    keep_unused_weights: bool = False  # that the retained clients' training does not use


_OPTIONS = TypeAdapter(EraseOptions)


def as_json(options: EraseOptions) -> dict[str, Any]:
    """Return options by name, fit for JSON."""
    try:
        found: dict[str, Any] = _OPTIONS.dump_python(options, mode="json", warnings="error")
    except ValueError as error:
        raise ConfigError(f"these options cannot be written down: {error}") from error
    return found


def check_options(options: EraseOptions) -> None:
    """Raise if nobody should ask for this; what a journal has is carried out as it is."""
    for name in options.methods:
        entry = METHODS.get(base_name(name))
        if entry is not None and not entry.erases:
            raise ConfigError(
                f"method {name!r} is there to compare with, in `secede run`: {entry.summary}; "
                "`secede methods` lists what erases, and what each needs"
            )
    if options.max_rounds < options.min_rounds and not options.untrusted_leaver:
        raise ConfigError(
            f"at most {options.max_rounds} rounds, but at least {options.min_rounds} after a local "
            "step: raise the former or lower the latter (with 0 at least, what the leaver returned "
            "may be what serves)"
        )


def from_json(given: Mapping[str, Any]) -> EraseOptions:
    """Return options from some of their fields, as JSON has them; the others are as usual."""
    if unknown := given.keys() - {each.name for each in fields(EraseOptions)}:
        raise ConfigError(f"options: unknown {str(min(unknown))[:40]!r}")
    try:
        options = _OPTIONS.validate_json(json.dumps(given))
    except (ValidationError, TypeError) as error:
        told = describe_errors(error) if isinstance(error, ValidationError) else error
        raise ConfigError(f"options: {told}") from error
    check_options(options)
    return options


def original_options(course: Progress, otherwise: EraseOptions) -> EraseOptions:
    """Return the options that a request was planned with; `otherwise` before its first plan."""
    known = [t.details["options"] for t in course.way if "options" in t.details]
    if not known:
        return otherwise
    try:
        return _OPTIONS.validate_json(to_canonical(known[0]))
    except ValidationError as error:
        raise RecordError(
            f"the options of request {course.entry.id} are damaged ({describe_errors(error)})"
        ) from error


def are_ignored(course: Progress, options: EraseOptions) -> bool:
    """Return whether these are options for a request that was planned with others."""
    known = as_json(original_options(course, options))
    return options != EraseOptions() and as_json(options) != known
