"""Who of the retained clients was left out on a rung, read from the journal alone.

A client that is silent, or whose reply cannot be used, is left out for the rest of its rung and
named; the next rung asks it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from secede.erasure.storage import progress as courses
from secede.erasure.storage.journal_entries import Transition
from secede.erasure.types import Document, Name

NAMED = 400  # in one transition; more are asked again


class Left(Document):
    """A retained client that was left out, and why: silent, malformed, not-finite and the like."""

    client: Name
    why: Name


def left_out(way: Sequence[Transition]) -> tuple[Left, ...]:
    """Return who was left out on the rung that `way` ends on, each with the first reason."""
    found: dict[str, Left] = {}
    for transition in reversed(way):
        if transition.state in (courses.ESCALATED, courses.PLANNED):
            break
        for told in reversed(transition.details.get("left_out", ())):
            found[told["client"]] = Left.model_validate(told)
    return tuple(found[name] for name in sorted(found))


def present(retained: Iterable[str], way: Sequence[Transition]) -> tuple[str, ...]:
    """Return who of `retained` still takes part after `way`."""
    gone = {left.client for left in left_out(way)}
    return tuple(name for name in retained if name not in gone)
