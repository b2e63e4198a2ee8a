"""What canaries say of a model: the commitment to them, one reading, and the rule that judges.

A client commits to its canaries and their coins before the first round. Later it reads them in a
model and signs counts: no canary, and nothing of a single one, leaves it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from secede.audit import CanaryRule as Rule
from secede.audit import Judgement, Ranks, judge
from secede.audit import Reading as Counts
from secede.erasure.canonical_json import parse_document
from secede.erasure.documents.data_commitment import Commitment, commit_to_samples
from secede.erasure.types import Count, Digest, Document, Forgotten, Fraction, Name, Rung, Text
from secede.errors import DataError, TrustError

if TYPE_CHECKING:
    from secede.canaries import CanaryCounts

MAX_READING_BYTES = 64 * 1024  # signed; one takes about 900
MAX_CANARIES = 256
NO_CANARIES = "the client planted no canaries before the training"
NOT_ASKED = "the plan asks for no reading at the client"
ABSENT = "the client was not there to read its canaries"
UNREAD = "no reading of this model is there"
UNSOUND = "what the client sent is no sound reading of its canaries"

Positive = Annotated[int, Field(ge=1, le=MAX_CANARIES)]
Level = Annotated[float, Field(gt=0, lt=1)]
Looks = Annotated[int, Field(ge=1, le=1000)]


class CanaryCommitment(Document):
    """What a client committed to: the root over canaries and coins, how many, of what kind."""

    commitment: Commitment
    kind: Name
    copies: Positive  # of each canary among its training samples
    share: Fraction  # of its training samples that canaries take


class CommittedCanaries(Document):
    """The file that says which commitment a client's canaries belong to; it gives none away."""

    version: Literal[1] = 1
    federation: Name
    client: Name
    canaries: CanaryCommitment

    @classmethod
    def read(cls, data: bytes) -> CommittedCanaries:
        """Return the commitment in a file; TrustError if it is none."""
        return parse_document(cls, data, MAX_READING_BYTES, "a commitment to canaries")


class CanaryReading(Document):
    """How a client's drawn candidates rank in one model: counts over all canaries together."""

    version: Literal[1] = 1
    federation: Name
    client: Name
    request: Digest
    model: Digest
    root: Digest  # of the commitment
    # A histogram for each number of candidates K: how many drawn candidates have rank 1 to K.
    ranks: Annotated[
        tuple[Annotated[tuple[Count, ...], Field(min_length=2, max_length=100)], ...],
        Field(min_length=1, max_length=64),
    ]
    wins: Count  # canaries whose drawn candidate ranks before its opponent
    count: Positive

    @model_validator(mode="after")
    def _check_counts(self) -> Self:
        try:
            self.counts()
        except DataError as error:
            raise ValueError(str(error)) from None
        return self

    def counts(self) -> Counts:
        """Return the counts as the test takes them."""
        return Counts(ranks=Ranks(self.ranks), wins=self.wins, count=self.count)


def commit_to_canaries(
    rows: Iterable[bytes], secret: bytes, *, kind: str, copies: int, samples: int
) -> CanaryCommitment:
    """Return the commitment to a client's canaries, `rows`, among so many training samples."""
    commitment = commit_to_samples(rows, secret)
    share = copies * commitment.samples / samples
    return CanaryCommitment(commitment=commitment, kind=kind, copies=copies, share=share)


def check_canaries(rows: Iterable[bytes], secret: bytes, root: str) -> None:
    """Raise TrustError unless `root` was committed to with these canaries, `rows`."""
    if commit_to_samples(rows, secret).root != root:
        raise TrustError("these are not the canaries that were committed to: their root differs")


def new_reading(
    counts: CanaryCounts, root: str, *, federation: str, client: str, request: str, model: str
) -> CanaryReading:
    """Return a client's reading of its canaries in a model, for an erasure."""
    return CanaryReading(
        federation=federation,
        client=client,
        request=request,
        model=model,
        root=root,
        ranks=tuple(histogram for _, histogram in counts.ranks),
        wins=counts.wins,
        count=counts.count,
    )


class SignedReading(Document):
    """A reading, and its envelope where the client has a key."""

    reading: CanaryReading
    envelope: Annotated[str, Field(max_length=MAX_READING_BYTES)] | None = None


class CanaryRule(Document):
    """The rule of the test, written into the plan before anybody is asked."""

    level: Level = 0.01  # a trace is found if a model that knows nothing shows as much so seldom
    bound_level: Level = 0.95  # of the bound on what may remain, over all looks
    looks: Looks = 1  # at models after the erasure, that the plan allows

    def judge(
        self, before: CanaryReading | None, after: CanaryReading | None, absent: str | None
    ) -> Judgement:
        """Return the verdict; `absent` says why a reading is missing."""
        rule = Rule(level=self.level, bound_level=self.bound_level, looks=self.looks)
        return judge(
            None if before is None else before.counts(),
            None if after is None else after.counts(),
            rule,
            absent,
        )


class Look(Document):
    """One look at the canaries in a model after the erasure: on which rung, after which round."""

    rung: Rung
    method: Name
    round: Count
    after: SignedReading


class CanaryPart(Document):
    """What a receipt says of the canaries: all that was read, and what follows from it."""

    rule: CanaryRule = CanaryRule()
    before: SignedReading | None = None
    looks: Annotated[tuple[Look, ...], Field(max_length=64)] = ()  # the last one decides
    absent: Text | None = None  # why a reading of the last model, or of the one before, is missing

    @model_validator(mode="after")
    def _check_readings(self) -> Self:
        if len({each.reading.counts().ranks.groups for each in self.signed_readings}) > 1:
            raise ValueError("the readings are of other canaries")
        return self

    @property
    def signed_readings(self) -> tuple[SignedReading, ...]:
        """All readings, that of the model from before first."""
        before = () if self.before is None else (self.before,)
        return (*before, *(look.after for look in self.looks))

    def readings(self, before: str, after: str) -> Iterator[tuple[CanaryReading, str | None]]:
        """Yield each reading, and the model that it must be of; None: one in between."""
        if self.before is not None:
            yield self.before.reading, before
        for number, look in enumerate(self.looks, start=1):
            is_last = number == len(self.looks) and self.absent is None
            yield look.after.reading, after if is_last else None

    def judgement(self, model: str) -> Judgement:
        """Return the verdict on a model, by its last look; TrustError if the parts differ."""
        last = self.looks[-1].after.reading if self.looks else None
        after = last if last is not None and last.model == model else None
        before = self.before.reading if self.before else None
        absent = None
        if before is None or after is None:
            absent = self.absent or UNREAD
        try:
            return self.rule.judge(before, after, absent)
        except DataError as error:
            raise TrustError(f"the readings of canaries do not fit each other: {error}") from None

    def verdict(self, model: str) -> Forgotten:
        """Return the verdict on a model, as a name."""
        verdicts: dict[str, Forgotten] = {
            "no trace found": "no-trace-found",
            "trace found": "trace-found",
            "undetermined": "undetermined",
        }
        return verdicts[self.judgement(model).verdict]
