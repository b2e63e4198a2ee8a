"""The receipt as a page for people: one self-contained HTML file that prints on one sheet of A4.

It is made from a verified receipt only and is no document by itself: it names the signed file,
which counts. Long lists are cut where the sheet ends, and the page says so. The limits of this
erasure are never cut, and stand before the standing ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from secede import files
from secede.erasure.documents import STANDING_LIMITS, Destroyed, Predicate, RequestPart, Score
from secede.erasure.receipts.verify import Verified
from secede.erasure.types import parse_time
from secede.errors import ConfigError
from secede.text import format_bytes, plural, short_digest, shorten

# As many as fit on the sheet; fewer where the erasure's own limits take more characters.
_MAX_SCORES, _MAX_PARAMETERS, _MAX_DESTROYED, _MAX_REMAINING = 4, 4, 3, 1
_DENSE_SCORES, _DENSE_PARAMETERS, _DENSE_DESTROYED = 2, 2, 1
_DENSE_LENGTH = 700
_TEXT_LENGTH = 60  # characters of a description

_TRIGGERS = {
    "consent-withdrawn": "consent was withdrawn",
    "objection": "an objection to the processing",
    "unlawful": "the processing was unlawful",
    "contract-ended": "the contract ended",
    "other": "another reason",
}
_RUNGS = {
    "local-step": "Local step at the client, then training by the others",
    "server-side": "Method at the server, without the client's help",
    "retraining": "Retraining without the client",
}
_RETRAINED = "The model was retrained without the client: none of its updates went into it."
_MARKS = {
    "by-construction": "retrained",
    "no-trace-found": "no trace found",
    "trace-found": "trace found",
    "undetermined": "undetermined",
}
_USEFUL = {
    "yes": "The model stays useful within the stated margin.",
    "no": "The model is less useful than the stated margin allows.",
    "undetermined": "Whether the model stays useful is undetermined.",
}
_MODELS = {"retrained": "retrained", "before": "before the erasure", "chance": "guessing"}
_ABOUT = {"leaver": "about the client", "usefulness": "about usefulness"}
T = TypeVar("T")


@dataclass(frozen=True)
class _Cut:
    """The entries that fit, and the number of those that do not."""

    entries: Sequence[object]
    left_out: int


def write_page(verified: Verified, receipt: Path) -> Path:
    """Write the page beside the receipt's file and return its path."""
    page = receipt.with_suffix(".html")
    if page == receipt:
        raise ConfigError(f"{receipt}: its page would replace it; call the receipt NAME.json")
    files.write_text(page, render_page(verified, receipt.name))
    return page


def render_page(verified: Verified, receipt_name: str) -> str:
    """Return the page for a receipt whose file is called `receipt_name`."""
    receipt = verified.statement.predicate
    verification = receipt.verification
    dense = sum(map(len, receipt.own_limits)) > _DENSE_LENGTH
    parameters = tuple(receipt.method.parameters.items())
    destroyed = destroyed_by_kind(receipt.destroyed)
    return _template().render(
        verified=verified,
        receipt=receipt,
        receipt_name=receipt_name,
        headline=_headline(receipt),
        mark=_MARKS[verification.forgotten],
        heading=scores_heading(verification.scores),
        trigger=_TRIGGERS[receipt.request.trigger],
        rung=_RUNGS[receipt.method.rung],
        duration=describe_duration(receipt.request),
        models=_MODELS,
        about=_ABOUT,
        scores=_cut(verification.scores, _DENSE_SCORES if dense else _MAX_SCORES),
        parameters=_cut(parameters, _DENSE_PARAMETERS if dense else _MAX_PARAMETERS),
        destroyed=_cut(destroyed, _DENSE_DESTROYED if dense else _MAX_DESTROYED),
        remaining=_cut(receipt.remaining, _MAX_REMAINING),
        dense=dense,
        own_limits=receipt.own_limits,
        standing_limits=STANDING_LIMITS,
    )


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("secede.erasure.receipts"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        percent=_percent,
        bytes=format_bytes,
        comparison=_comparison,
        day=_day,
        shorten=lambda text, length=_TEXT_LENGTH: shorten(text, length),
        plural=plural,
        short_digest=short_digest,
    )
    return environment.get_template("receipt.html.j2")


def _headline(receipt: Predicate) -> str:
    """Return both verdicts in words."""
    verdicts = receipt.verification
    by_construction = verdicts.forgotten == "by-construction"
    forgotten = _RETRAINED
    if not by_construction:
        forgotten = verdicts.canaries.judgement(receipt.models.after).reason
    return f"{forgotten} {_USEFUL[verdicts.useful]}"


def scores_heading(scores: Sequence[Score]) -> str:
    """Return the heading of the scores, which says what they are compared with."""
    compared = {score.reference.model for score in scores if score.reference is not None}
    if "retrained" in compared:
        return "How close to retraining"
    if "before" in compared:
        return "Compared with the model from before the erasure"
    return "Compared with guessing" if compared else "Measured, with nothing to compare with"


def _comparison(score: Score) -> str:
    """Describe how far a score is from its reference."""
    reference = score.reference
    if reference is None:
        return "nothing to compare with"
    points = 100 * (score.value - reference.value)
    distance = "the same"
    if abs(points) >= 0.05:
        distance = f"{abs(points):.1f} points {'above' if points > 0 else 'below'}"
    apart = score.low > reference.high or reference.low > score.high
    return f"{distance}; intervals {'do not overlap' if apart else 'overlap'}"


def describe_duration(request: RequestPart) -> str:
    """Describe how long the erasure took, and how that compares with the due date."""
    received, completed, deadline = (
        parse_time(time).date() for time in (request.received, request.completed, request.deadline)
    )
    days, days_left = (completed - received).days, (deadline - completed).days
    duration = "on the day of receipt" if days == 0 else f"{plural(days, 'day')} after receipt"
    if not request.in_time:
        return f"{duration}, after the due date"
    return f"{duration}, {plural(days_left, 'day')} before it was due"


def destroyed_by_kind(destroyed: Sequence[Destroyed]) -> tuple[Destroyed, ...]:
    """Return one entry for each kind of item, with their number and the last day."""
    counts, last = Counter(item.what for item in destroyed), dict[str, str]()
    for item in destroyed:
        last[item.what] = max(item.at, last.get(item.what, item.at))
    return tuple(
        Destroyed(
            what=what if counts[what] == 1 else f"{shorten(what, _TEXT_LENGTH)} ({counts[what]})",
            at=at,
        )
        for what, at in last.items()
    )


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.1f}\u202f%"


def _day(text: str) -> str:
    """Return a time's day, as in 15 November 2026."""
    time = parse_time(text)
    return f"{time.day} {time:%B %Y}"


def _cut(entries: Sequence[T], limit: int) -> _Cut:
    return _Cut(entries[:limit], max(0, len(entries) - limit))
