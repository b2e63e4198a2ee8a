"""The ledger's rows as a chain of hashes, and the walk along it that finds every break.

Each row holds the hash of the one before it, so altering, removing, swapping or doubling any of
them breaks the chain there. Whoever rewrites all rows after a point gets a whole chain again, and
a cut tail leaves one: both are found by an expected head, as journal and receipts carry it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Annotated, Any, BinaryIO

from pydantic import Field, ValidationError

from secede.erasure.canonical_json import canonical, digest, parse
from secede.erasure.documents.ledger_rows import Kind, check_body
from secede.erasure.types import LARGEST, Count, Digest, Document, Moment, faults, stamp
from secede.errors import TrustError

ROW_BYTES = 1 << 20


class Head(Document):
    """How far a ledger goes: its last row's number, 0 if it has none, and that row's hash."""

    number: Count
    hash: Digest


START = Head(number=0, hash="0" * 64)


class Row(Document):
    """One row; `hash` is over the canonical form of all the rest."""

    number: Annotated[int, Field(ge=1, le=LARGEST)]
    at: Moment
    kind: Kind
    body: dict[str, Any]
    previous: Digest
    hash: Digest

    @property
    def head(self) -> Head:
        """The head of a ledger that ends with this row."""
        return Head(number=self.number, hash=self.hash)

    @property
    def line(self) -> bytes:
        """The row as a line of an exported ledger."""
        return canonical(self.model_dump()) + b"\n"


def link(head: Head, kind: Kind, body: Document, now: datetime) -> Row:
    """Return the row that continues a ledger which ends at `head`."""
    row = {
        "number": head.number + 1,
        "at": stamp(now),
        "kind": kind,
        "body": body.model_dump(mode="json"),
        "previous": head.hash,
    }
    return checked({**row, "hash": digest(row)})


def checked(value: dict[str, Any]) -> Row:
    """Return the row that `value` holds, once its shape, its body and its hash are right."""
    try:
        row = Row.model_validate(value)
    except ValidationError as error:
        raise TrustError(f"not a row of a ledger ({faults(error)})") from error
    check_body(row.kind, canonical(row.body))
    if digest({key: part for key, part in value.items() if key != "hash"}) != row.hash:
        raise TrustError(f"row {row.number} was altered: its hash does not fit what it holds")
    return row


def lines(file: BinaryIO) -> Iterator[Row]:
    """Yield the rows of an exported ledger, each line canonical to the byte."""
    number = 0
    while line := file.readline(ROW_BYTES + 1):
        number += 1
        try:
            if not line.endswith(b"\n"):
                raise TrustError("too long or cut off: a row ends with a newline")
            value = parse(line[:-1], ROW_BYTES)
            if canonical(value) != line[:-1]:
                raise TrustError("not in canonical form, as rows are written")
            row = checked(value)
        except TrustError as error:
            raise TrustError(f"line {number}: {error}") from None
        yield row


def walk(rows: Iterable[Row], *expected: Head | None) -> Iterator[Row]:
    """Yield each row once it continues the one before; raise at the first that does not.

    A ledger that ends before any of the `expected` heads, or has another row there, is refused too.
    """
    known = [one for one in expected if one is not None]
    head, named = START, {one.number: one for one in known}
    if named.get(0, START) != START or len(set(known)) != len(named):
        raise TrustError("the expected heads contradict each other: one of them was altered")
    for row in rows:
        _check_next(head, row)
        head = row.head
        if named.get(head.number, head) != head:
            raise TrustError(
                f"row {head.number} is not the one that the expected head names: the ledger was "
                "rewritten, or it is another one"
            )
        yield row
    if head.number < max(named, default=0):
        raise TrustError(
            f"the ledger ends at row {head.number} but had {max(named)}: its tail is missing"
        )


def end(rows: Iterable[Row], *expected: Head | None) -> Head:
    """Walk along all rows and return the head."""
    last = deque(walk(rows, *expected), maxlen=1)
    return last[0].head if last else START


def _check_next(head: Head, row: Row) -> None:
    if row.number <= head.number:
        raise TrustError(
            f"row {row.number} follows row {head.number}: a row was doubled or moved; "
            f"expected row {head.number + 1}"
        )
    if row.number > head.number + 1:
        raise TrustError(
            f"row {row.number} follows row {head.number}: a row was removed or moved; "
            f"expected row {head.number + 1}"
        )
    if row.previous != head.hash:
        raise TrustError(
            f"row {row.number} does not continue row {head.number}: one of them was replaced"
        )
