"""The receipt as a page for people: one self-contained HTML file that prints on two sheets of A4.

It is made from a verified receipt only and is no document by itself: it names the signed file,
which counts. Four answers come first, then all that they rest on. Of what was measured, deleted,
remains or is not shown nothing is left out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup, escape

from secede import files
from secede.erasure.documents import STANDING_LIMITS, Destroyed, Score
from secede.erasure.receipts.answers import (
    allowed_losses,
    answers,
    describe_difference,
    remaining_limits,
    show_day,
    show_p,
    show_percent,
)
from secede.erasure.receipts.canary_rows import canary_rows
from secede.erasure.receipts.rank_figure import HEIGHT, WIDTH, rank_figures
from secede.erasure.receipts.verify import Verified
from secede.erasure.types import parse_time
from secede.errors import ConfigError
from secede.text import format_bytes, plural, short_digest

_TRIGGERS = {
    "consent-withdrawn": "consent was withdrawn",
    "objection": "an objection to the processing",
    "unlawful": "the processing was unlawful",
    "contract-ended": "the contract ended",
    "other": "another reason",
}
_RUNGS = {
    "local-step": "The client took a step on its own data and returned one model; the other "
    "clients trained it on.",
    "server-side": "The server took the client's part out of the model without its help; the other "
    "clients trained it on.",
    "retraining": "The other clients trained a new model from scratch.",
}
_MODELS = {"retrained": "retrained", "before": "before", "chance": "guessing"}
# What a row means, by how its measure begins.
MEANINGS = {
    "right answers of the retained clients": "What the erasure took from the other clients.",
    "right answers at the client": "An ordinary client's own accuracy hardly changes when it is "
    "erased; that is what retraining does, too.",
    "right answers on held-out samples": "What the erasure took from everybody.",
    "attack success": "How often a trigger that the client planted still works. Without the client "
    "it hardly ever does.",
    "backdoor accuracy": "The same over all samples; some are of the trigger's own class.",
    "flipped accuracy": "Mirrored images, which the client had many of. Without it fewer are "
    "recognised.",
    "holdout accuracy": "An ordinary client's kind of samples. It hardly changes; that is what "
    "retraining does, too.",
    "exclusive accuracy": "Classes that only the client had. Without it a model cannot know them.",
    "class accuracy": "Classes that the client had most of. Without it they are known less well.",
    "others accuracy": "All other classes: they should hardly change.",
    "membership": "Whether an attacker can tell the client's samples: 50 % is guessing.",
}
_BY_ABOUT = {
    "leaver": "About the client: the nearer to a model without it, the better.",
    "usefulness": "About usefulness: the less it falls, the better.",
}


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
    rows, stays = canary_rows(receipt), remaining_limits(receipt)
    return _template().render(
        verified=verified,
        receipt=receipt,
        receipt_name=receipt_name,
        answers=answers(receipt),
        rows=rows,
        figures=rank_figures(rows),
        figure_size=(WIDTH, HEIGHT),
        heading=scores_heading(receipt.verification.scores),
        allowed=allowed_losses(receipt),
        trigger=_TRIGGERS[receipt.request.trigger],
        rung=_RUNGS[receipt.method.rung],
        models=_MODELS,
        destroyed=destroyed_by_day(receipt.destroyed),
        stays=stays,
        own_limits=[limit for limit in receipt.own_limits if limit not in stays],
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
        percent=show_percent,
        p=show_p,
        bytes=format_bytes,
        comparison=comparison,
        meaning=meaning,
        day=show_day,
        time=_time,
        code=_code,
        plural=plural,
        short_digest=short_digest,
    )
    return environment.get_template("receipt.html.j2")


def scores_heading(scores: Sequence[Score]) -> str:
    """Return the heading of the scores, which says what they are compared with."""
    compared = {score.reference.model for score in scores if score.reference is not None}
    if "retrained" in compared:
        return "Measured beside retraining"
    if "before" in compared:
        return "Measured beside the model from before the erasure"
    return "Measured beside guessing" if compared else "Measured, with nothing to compare with"


def comparison(score: Score) -> str:
    """Describe how far a score is from its reference."""
    reference = score.reference
    if reference is None:
        return "nothing to compare with"
    apart = score.low > reference.high or reference.low > score.high
    distance = describe_difference(score.value, reference.value)
    return f"{distance}; intervals {'do not overlap' if apart else 'overlap'}"


def meaning(score: Score) -> str:
    """Say in a sentence what a score means."""
    for words, said in MEANINGS.items():
        if score.measure.startswith(words):
            return said
    return _BY_ABOUT[score.about]


def destroyed_by_day(destroyed: Sequence[Destroyed]) -> dict[str, list[str]]:
    """Return the kinds that were destroyed, by the day of the last of each.

    A kind of several items has their number behind it.
    """
    counts, last = Counter(item.what for item in destroyed), dict[str, str]()
    for item in destroyed:
        last[item.what] = max(item.at, last.get(item.what, item.at))
    days: dict[str, list[str]] = {}
    for what, at in last.items():
        several = f" ({counts[what]})" if counts[what] > 1 else ""
        days.setdefault(show_day(at), []).append(what + several)
    return days


def _time(text: str) -> str:
    """Return a time with its zone, as in 15 November 2026, 13:00 UTC."""
    return f"{show_day(text)}, {parse_time(text):%H:%M} UTC"


def _code(text: str) -> Markup:
    """Return a text as HTML, with what stands between backticks as code."""
    return Markup(re.sub("`([^`]*)`", r"<code>\1</code>", str(escape(text))))
