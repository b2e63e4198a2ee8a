"""The receipt's scores: shares with intervals beside the retrained model's, and the two answers."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from secede.erasure.documents.ledger_rows import Reply
from secede.erasure.types import Count, Document, Share, Text


class Interval(Document):
    """A share of `count` samples with its interval."""

    value: Share
    low: Share
    high: Share
    count: Annotated[Count, Field(ge=1)]

    @model_validator(mode="after")
    def _holds_its_value(self) -> Self:
        if not self.low <= self.value <= self.high:
            raise ValueError("the value lies outside of its interval")
        return self


class Reference(Interval):
    """The same measured on the model that a score is compared with."""

    model: Literal["retrained", "before", "chance"]


class Score(Interval):
    """One measure of the erased model."""

    about: Literal["leaver", "usefulness"]
    measure: Text
    reference: Reference | None = None


class Verification(Document):
    """What was measured, and the two answers; without a retrained model they stay open."""

    scores: Annotated[tuple[Score, ...], Field(min_length=1, max_length=64)]
    level: Annotated[float, Field(gt=0, lt=1)] = 0.95
    margin_points: Annotated[float, Field(ge=0, le=100)]
    forgotten: Reply
    by_definition: bool = False  # trained from scratch without the client: nothing to measure
    useful: Reply

    @model_validator(mode="after")
    def _answers_have_grounds(self) -> Self:
        compared = [s for s in self.scores if s.reference and s.reference.model == "retrained"]
        if self.by_definition and self.forgotten != "yes":
            raise ValueError("forgotten by definition, and yet not 'yes'")
        measured = any(score.about == "leaver" for score in compared)
        if self.forgotten == "yes" and not (self.by_definition or measured):
            raise ValueError("forgotten 'yes' needs a score of the leaver beside retraining's")
        return self
