"""The four answers at the top of a receipt's page, in plain words with their numbers.

Erased when, and in time? Forgotten, as far as canaries tell? Still useful? What remains, and until
when? Nothing here decides: verdicts and limits are the receipt's own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from secede.erasure.documents import NO_CANARIES, Predicate, RequestPart, Score
from secede.erasure.receipts.canary_rows import CanaryRow, canary_rows
from secede.erasure.types import parse_time
from secede.text import plural

# Limits that say what stays somewhere: they stand under what remains.
_STAYS = re.compile(r"\b(stay|stays|stayed)\b|\bkeep their\b|\bwas kept\b")
_COINS = {
    "withheld-twins": "which of two twins was trained on",
    "mislabelled": "the label of each",
}
_NEW_TRAINING = (
    "For certainty, ask for a new model, trained from scratch by the other clients; it needs "
    "nothing of this one. A request that is still to come can have that at once: "
    "`secede erase --retrain`."
)
_PLANT = (
    "For the next time: let the clients plant canaries before the training, enough of them for the "
    "power that you want. Afterwards it is too late."
)
_NOT_DONE = (
    "Do not take the erasure for done. Ask the server's operator why no later rung was taken: the "
    "last one, retraining, leaves nothing of the client."
)
_READ_LATER = (
    "Ask the client, or an auditor who holds its sealed secret, to read the canaries in the model "
    "in service, offline, and to hand you what it signs."
)
_NO_CONTROL = (
    "The old model is deleted and nobody read the canaries in it: a later reading can find a "
    "trace, but cannot show that there is none."
)

Tone = Literal["yes", "no", "open"]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One answer: its headline, what it rests on, and what to do where it is not enough."""

    tone: Tone
    title: str
    said: tuple[str, ...]
    steps: tuple[str, ...] = ()


def answers(receipt: Predicate) -> tuple[Answer, ...]:
    """Return the four answers in their order."""
    return (_erased(receipt), _forgotten(receipt), _useful(receipt), _remaining(receipt))


def remaining_limits(receipt: Predicate) -> tuple[str, ...]:
    """Return the limits of this erasure that say what stays somewhere."""
    return tuple(limit for limit in receipt.own_limits if _STAYS.search(limit))


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


def show_day(text: str) -> str:
    """Return a time's day, as in 15 November 2026; it does not break."""
    time = parse_time(text)
    return f"{time.day}\u00a0{time:%B}\u00a0{time.year}"


def show_percent(fraction: float) -> str:
    """Return a fraction in percent, as in 41.2 %."""
    return f"{100 * fraction:.1f}\u202f%"


def show_p(p_value: float) -> str:
    """Return a p value with two digits, as in 0.031 or 1.6e-15."""
    return f"{p_value:.2g}".replace("-", "\u2011")  # a hyphen that does not break


def points_between(value: float, reference: float) -> float:
    """Return the points between two fractions as they are printed: each rounded to 0.1 %."""
    return round(round(100 * value, 1) - round(100 * reference, 1), 1)


def describe_difference(value: float, reference: float) -> str:
    """Describe how far a fraction is from its reference, so that it agrees with both as printed."""
    points = points_between(value, reference)
    if points == 0:
        return "the same"
    return f"{abs(points):.1f} points {'higher' if points > 0 else 'lower'}"


def _erased(receipt: Predicate) -> Answer:
    request = receipt.request
    in_time = request.in_time
    kinds = len({item.what for item in receipt.destroyed})
    deleted = "Nothing is listed as deleted."
    if kinds:
        last = show_day(max(item.at for item in receipt.destroyed))
        deleted = (
            f"The server states that it deleted {plural(kinds, 'kind')} of things, the last on "
            f"{last}; all are listed below."
        )
    extended = f", extended to {show_day(request.extended_to)}" if request.extended_to else ""
    return Answer(
        tone="yes" if in_time else "no",
        title=f"Erased on {show_day(request.completed)}, {'in time' if in_time else 'late'}",
        said=(
            f"Received on {show_day(request.received)}, due by {show_day(request.due)}{extended}; "
            f"completed {describe_duration(request)}. A new model has been in service since "
            f"{show_day(request.promoted)}.",
            deleted,
        ),
    )


def _forgotten(receipt: Predicate) -> Answer:
    verdict = receipt.verification.forgotten
    judged = receipt.verification.canaries.judgement(receipt.models.after)
    if verdict == "by-construction":
        return _by_construction(receipt)
    rows = canary_rows(receipt)
    if verdict == "no-trace-found":
        return Answer(
            tone="yes",
            title="No trace found",
            said=(_ranks(receipt, rows), _retraining(receipt, rows), judged.reason),
        )
    if verdict == "trace-found":
        return Answer(
            tone="no",
            title="Not forgotten: a trace was found",
            said=(_ranks(receipt, rows), _retraining(receipt, rows), judged.reason),
            steps=(_NOT_DONE, _NEW_TRAINING),
        )
    return Answer(
        tone="open",
        title="Forgetting: undetermined",
        said=(
            judged.reason.removeprefix("Undetermined: ")[:1].upper()
            + judged.reason.removeprefix("Undetermined: ")[1:],
            "No trace was found, and none was ruled out: this answer says nothing for or against "
            "the erasure. After retraining the answer would be: forgotten by construction.",
        ),
        steps=_steps(receipt),
    )


def _by_construction(receipt: Predicate) -> Answer:
    said = [
        "The model was trained from scratch without the client: none of its updates went into it, "
        "so that nothing of it can be in there. That holds by construction and was not measured. "
        "It is what the other methods are compared with."
    ]
    rows = [row for row in canary_rows(receipt) if row.decides]
    level = receipt.verification.canaries.rule.level
    if rows and rows[-1].p_value < level:
        said.append(
            f"The client's canaries show all the same (p = {show_p(rows[-1].p_value)}). Chance "
            f"alone does that to at most {100 * level:g} in 100 retrained models; else the "
            "client's data came back another way."
        )
    elif rows:
        said.append(f"The client's canaries do not show in it (p = {show_p(rows[-1].p_value)}).")
    return Answer(tone="yes", title="Forgotten by construction", said=tuple(said))


def _ranks(receipt: Predicate, rows: Sequence[CanaryRow]) -> str:
    """Say what canaries are, and where the models put what the coins drew."""
    planted, last = receipt.scope.canaries, rows[-1]
    coins = _COINS.get(planted.kind if planted else "", "the label of each")
    sizes = {len(counts) for counts in last.histograms}
    of = f" of {max(sizes)}" if len(sizes) == 1 else ""
    before = f"{rows[0].mean_rank:.2f}{of} in the old model, " if rows[0].round is None else ""
    return (
        f"Before the first round the client put {last.count:,} canaries among its samples; a "
        f"secret coin drew {coins}. The mean rank of what was drawn is {before}"
        f"{last.mean_rank:.2f}{'' if before else of} in the new one, and "
        f"{last.chance_mean:.2f} by chance."
    )


def _retraining(receipt: Predicate, rows: Sequence[CanaryRow]) -> str:
    level = receipt.verification.canaries.rule.level
    return (
        f"A model retrained without the client knows nothing of the coins: its mean rank would be "
        f"{rows[-1].chance_mean:.2f}, give or take chance, and at most {100 * level:g} in 100 such "
        "models would be called a trace."
    )


def _steps(receipt: Predicate) -> tuple[str, ...]:
    """Return what to do where the answer is undetermined, by why it is."""
    canaries = receipt.verification.canaries
    if receipt.scope.canaries is None or canaries.absent == NO_CANARIES:
        return (_NEW_TRAINING, _PLANT)
    if canaries.absent is None and canaries.looks:
        return (_NEW_TRAINING, _PLANT.replace("enough", "more of them, or more copies: enough"))
    later = _READ_LATER if canaries.before else f"{_READ_LATER} {_NO_CONTROL}"
    return (later, _NEW_TRAINING)


def _useful(receipt: Predicate) -> Answer:
    titles: dict[str, tuple[Tone, str]] = {
        "yes": ("yes", "Still useful"),
        "no": ("no", "Less useful than allowed"),
        "undetermined": ("open", "Usefulness: undetermined"),
    }
    tone, title = titles[receipt.verification.useful]
    scores = [score for score in receipt.verification.scores if score.about == "usefulness"]
    said = [_accuracy(scores[0])] if scores else []
    said += [margins] if (margins := allowed_losses(receipt)) else []
    if tone == "open":
        said.append("The samples are too few to tell whether the loss is below that margin.")
    steps = (
        ("Ask whether the other clients can train on: further rounds may bring accuracy back.",)
        if tone == "no"
        else ()
    )
    return Answer(tone=tone, title=title, said=tuple(said), steps=steps)


def _accuracy(score: Score) -> str:
    """Say the first score of usefulness, beside its reference as it is printed."""
    compared = {"retrained": "in a retrained model", "before": "before", "chance": "by guessing"}
    measure = f"{score.measure[:1].upper()}{score.measure[1:]}"
    if score.reference is None:
        return f"{measure}: {show_percent(score.value)}."
    return (
        f"{measure}: {show_percent(score.value)}; {compared[score.reference.model]} "
        f"{show_percent(score.reference.value)}. That is "
        f"{describe_difference(score.value, score.reference.value)}."
    )


def allowed_losses(receipt: Predicate) -> str:
    """Say which loss the gate allowed; empty where the plan's settings do not have it."""
    settings = receipt.method.settings
    overall, of_class = settings.get("margins.overall"), settings.get("margins.per_class")
    if not isinstance(overall, int | float):
        return ""
    said = f"A loss of up to {100 * overall:g} points over all samples was allowed"
    if isinstance(of_class, int | float):
        said += f", and {100 * of_class:g} of a class"
    return f"{said}."


def _remaining(receipt: Predicate) -> Answer:
    stays = len(remaining_limits(receipt))
    if receipt.remaining:
        last = show_day(max(item.until for item in receipt.remaining))
        title = f"In backups until {last}"
        kinds = sorted({item.what for item in receipt.remaining})
        what = kinds[0] if len(kinds) == 1 else f"{len(kinds)} kinds of things, listed below"
        said = [f"The server states that backups hold {what}."]
    else:
        title = "No backups are stated"
        said = ["The server states no backup of what it deleted. That is its own word."]
    if stays:
        said.append(
            f"{plural(stays, 'more thing')} without an end date {'is' if stays == 1 else 'are'} "
            "named below."
        )
    return Answer(tone="open", title=title, said=tuple(said))
