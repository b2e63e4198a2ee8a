"""Answers to questions about a run: yes or no where a whole interval says so."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from secede.reports.analysis.estimates import Estimate
from secede.text import plural


class Reply(StrEnum):
    """The reply to a question."""

    YES = "yes"
    NO = "no"
    UNDETERMINED = "undetermined"


@dataclass(frozen=True)
class Answer:
    """A question, its reply, and sentences with the numbers behind it; `parts` for a page."""

    question: str
    reply: Reply
    sentence: str
    parts: tuple[str, ...] = ()  # the same sentences, one by one


def reply_within(estimate: Estimate, low: float, high: float) -> Reply:
    """Return yes if an interval lies within [low, high], no if outside, else undetermined."""
    if estimate.interval is None:
        return Reply.UNDETERMINED
    bottom, top = estimate.interval
    if low <= bottom and top <= high:
        return Reply.YES
    return Reply.NO if bottom > high or top < low else Reply.UNDETERMINED


def join_replies(replies: Iterable[Reply]) -> Reply:
    """Return yes if all replies are yes, no if any is no, else undetermined."""
    given = set(replies)
    for reply in (Reply.NO, Reply.UNDETERMINED):
        if reply in given:
            return reply
    return Reply.YES


def as_sentence(numbers: str) -> str:
    """Return the numbers as a sentence: capitalised, with a full stop."""
    return numbers[0].upper() + numbers[1:] + "."


def describe_round(round: int) -> str:
    """Return a round of post-training in words."""
    return f"after {plural(round, 'round')} of post-training" if round else "before post-training"
