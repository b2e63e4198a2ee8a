"""Wishes as the journal keeps them, so that planning again starts from what was asked for."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter, ValidationError

from secede.erasure.canonical import canonical
from secede.erasure.course import Course
from secede.erasure.fields import faults
from secede.erasure.planning import Wishes
from secede.errors import ConfigError, RecordError

_WISHES = TypeAdapter(Wishes)


def kept(wishes: Wishes) -> dict[str, Any]:
    """Return wishes by name, fit for JSON."""
    try:
        found: dict[str, Any] = _WISHES.dump_python(wishes, mode="json", warnings="error")
    except ValueError as error:
        raise ConfigError(f"these wishes cannot be written down: {error}") from error
    return found


def asked(course: Course, otherwise: Wishes) -> Wishes:
    """Return the wishes that a request was planned with; `otherwise` before its first plan."""
    known = [t.details["wishes"] for t in course.way if "wishes" in t.details]
    if not known:
        return otherwise
    try:
        return _WISHES.validate_json(canonical(known[0]))
    except ValidationError as error:
        raise RecordError(
            f"the wishes of request {course.entry.id} are damaged ({faults(error)})"
        ) from error
