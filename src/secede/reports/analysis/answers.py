"""Answers that may be undetermined: where a 95 % interval lies against a stated margin."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from secede.reports.analysis.statistics import Estimate
from secede.text import plural

JUDGED_ROUND = 2  # post-training round at which the erased model is judged
FORGOTTEN_POINTS = 3.0  # the probe's score may differ from the retrained model's by this much
USEFUL_POINTS = 2.0  # clean accuracy may fall this far below the retrained model's
LOSS_FACTOR = 1.25  # clean leaver: loss on its samples, as a multiple of the retrained model's


class Reply(StrEnum):
    """What a question is answered with."""

    YES = "yes"
    NO = "no"
    UNDETERMINED = "undetermined"


@dataclass(frozen=True)
class Answer:
    """A question, its answer, and the numbers behind it in a sentence."""

    question: str
    reply: Reply
    sentence: str


def place(estimate: Estimate, low: float, high: float) -> Reply:
    """Say whether an interval lies within [low, high], outside of it, or across an end."""
    if estimate.interval is None:
        return Reply.UNDETERMINED
    bottom, top = estimate.interval
    if low <= bottom and top <= high:
        return Reply.YES
    return Reply.NO if bottom > high or top < low else Reply.UNDETERMINED


def worst(replies: set[Reply]) -> Reply:
    """Join answers that must all be yes: any no decides, then any undetermined."""
    for reply in (Reply.NO, Reply.UNDETERMINED):
        if reply in replies:
            return reply
    return Reply.YES


def sentence(numbers: str) -> str:
    """Make a sentence of the numbers."""
    return numbers[0].upper() + numbers[1:] + "."


def after(round: int) -> str:
    """Name a moment of post-training."""
    return f"after {plural(round, 'round')} of post-training" if round else "before post-training"
