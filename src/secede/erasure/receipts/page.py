"""The receipt for people: one self-contained HTML page that prints on one sheet of A4.

It is made from a verified receipt only and is no document by itself: it names the signed file,
which counts. Long lists are cut where the sheet ends, and the page says so; what this erasure does
not show is never cut, and stands before what no receipt shows.
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
from secede.erasure.documents.receipt import (
    STANDING_LIMITS,
    Destroyed,
    Interval,
    Predicate,
    RequestPart,
    Score,
)
from secede.erasure.receipts.verify import Verified
from secede.erasure.types import parse_time
from secede.errors import ConfigError
from secede.text import format_bytes, plural, short_digest, shorten

SCORES, PARAMETERS, KINDS, ITEMS, TEXT = 4, 4, 3, 1, 60  # what fits on the sheet
LONG = 700  # characters of an erasure's own limits; where there are more, less of the rest fits

TRIGGERS = {
    "consent-withdrawn": "consent was withdrawn",
    "objection": "an objection to the processing",
    "unlawful": "the processing was unlawful",
    "contract-ended": "the contract ended",
    "other": "another reason",
}
RUNGS = {
    "local-step": "A local step at the client itself, then training by the others",
    "server-side": "A method at the server, without the client's help",
    "retraining": "Retraining without the client",
}
FORGOTTEN = {
    "yes": "Measured within {margin:g} points of a model retrained without the client.",
    "no": "Measured further than {margin:g} points from a model retrained without the client.",
    "undetermined": "Whether it forgot as retraining would is undetermined.",
}
RETRAINED = "The model was retrained without the client: none of its updates went into it."
MARKS = {"yes": "as retraining", "no": "not as retraining", "undetermined": "undetermined"}
USEFUL = {
    "yes": "It stays useful within the stated margin.",
    "no": "It is less useful than the stated margin allows.",
    "undetermined": "Whether it stays useful is undetermined.",
}
MODELS = {"retrained": "retrained", "before": "before the erasure", "chance": "guessing"}
T = TypeVar("T")


@dataclass(frozen=True)
class Shown:
    """As many entries as fit, and how many do not."""

    entries: Sequence[object]
    left_out: int


def render(verified: Verified, receipt_name: str) -> str:
    """Return the page for a receipt whose file is called `receipt_name`."""
    told = verified.statement.predicate
    dense = sum(map(len, told.own_limits)) > LONG
    return _template().render(
        verified=verified,
        told=told,
        receipt_name=receipt_name,
        headline=headline(told),
        mark="retrained" if _is_retrained(told) else MARKS[told.verification.forgotten],
        heading=heading(told.verification.scores),
        trigger=TRIGGERS[told.request.trigger],
        rung=RUNGS[told.method.rung],
        clock=clock(told.request),
        models=MODELS,
        compare=compare,
        scores=_fit(told.verification.scores, SCORES // 2 if dense else SCORES),
        parameters=_fit(tuple(told.method.parameters.items()), 2 if dense else PARAMETERS),
        destroyed=_fit(kinds(told.destroyed), 1 if dense else KINDS),
        remaining=_fit(told.remaining, ITEMS),
        dense=dense,
        own_limits=told.own_limits,
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
        percent=percent,
        bytes=format_bytes,
        day=day,
        shorten=shorten,
        plural=plural,
        short_digest=short_digest,
    )
    return environment.get_template("certificate.html.j2")


def write(verified: Verified, receipt: Path) -> Path:
    """Write the page beside the receipt's file and return where it is."""
    page = receipt.with_suffix(".html")
    if page == receipt:
        raise ConfigError(f"{receipt}: its page would replace it; call the receipt NAME.json")
    files.write_text(page, render(verified, receipt.name))
    return page


def headline(told: Predicate) -> str:
    """Return both answers in words."""
    answers = told.verification
    forgotten = FORGOTTEN[answers.forgotten].format(margin=answers.margin_points)
    return f"{RETRAINED if _is_retrained(told) else forgotten} {USEFUL[answers.useful]}"


def heading(scores: Sequence[Score]) -> str:
    """Return what the scores show, by what they are compared with."""
    compared = {score.reference.model for score in scores if score.reference is not None}
    if "retrained" in compared:
        return "How close to retraining"
    if "before" in compared:
        return "Beside the model from before the erasure"
    return "Beside guessing" if compared else "Measured, with nothing to compare with"


def kinds(destroyed: Sequence[Destroyed]) -> tuple[Destroyed, ...]:
    """Return one entry for each kind of thing, with the last day and how many there were."""
    counts, last = Counter(thing.what for thing in destroyed), dict[str, str]()
    for thing in destroyed:
        last[thing.what] = max(thing.at, last.get(thing.what, thing.at))
    return tuple(
        Destroyed(
            what=what if counts[what] == 1 else f"{shorten(what, TEXT)} ({counts[what]})", at=at
        )
        for what, at in last.items()
    )


def compare(score: Score) -> str:
    """Say in words how far a score is from its reference."""
    reference = score.reference
    if reference is None:
        return "nothing to compare with"
    points = 100 * (score.value - reference.value)
    where = "the same" if abs(points) < 0.05 else f"{abs(points):.1f} points "
    if abs(points) >= 0.05:
        where += "above" if points > 0 else "below"
    return f"{where}; intervals {'overlap' if _overlap(score, reference) else 'do not overlap'}"


def clock(request: RequestPart) -> str:
    """Say how long it took and how that stands to the law's month."""
    received, completed, deadline = (
        parse_time(when).date() for when in (request.received, request.completed, request.deadline)
    )
    taken, left = (completed - received).days, (deadline - completed).days
    took = "on the day of receipt" if taken == 0 else f"{plural(taken, 'day')} after receipt"
    if not request.in_time:
        return f"{took}, after the due date"
    return f"{took}, {plural(left, 'day')} before it was due"


def percent(share: float) -> str:
    """Return a share in percent."""
    return f"{100 * share:.1f}\u202f%"


def day(text: str) -> str:
    """Return a moment's day, as in 15 November 2026."""
    found = parse_time(text)
    return f"{found.day} {found:%B %Y}"


def _is_retrained(told: Predicate) -> bool:
    return told.method.rung == "retraining" and told.verification.forgotten == "yes"


def _overlap(one: Interval, other: Interval) -> bool:
    return one.low <= other.high and other.low <= one.high


def _fit(entries: Sequence[T], most: int) -> Shown:
    return Shown(entries[:most], max(0, len(entries) - most))
