"""The ledger: append-only, hash-chained rows in a SQLite file, or exported as JSON lines.

The file's triggers refuse to change or delete a row, which stops mistakes; the chain of hashes
finds what somebody did to the file by other means. See `documents/ledger_rows.py` for what a chain
cannot find alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO

from secede import files
from secede.erasure.canonical_json import parse_json, to_canonical
from secede.erasure.documents import (
    MAX_ROW_BYTES,
    START,
    Head,
    ReceiptBody,
    Row,
    checked_row,
    kind_of,
    link_row,
)
from secede.erasure.storage.sqlite import Database
from secede.erasure.types import Document, parse_time
from secede.errors import RecordError, TrustError

_STATEMENTS = (
    """CREATE TABLE rows (
    number INTEGER PRIMARY KEY,
    at TEXT NOT NULL,
    kind TEXT NOT NULL,
    body TEXT NOT NULL,
    previous TEXT NOT NULL,
    hash TEXT NOT NULL
) STRICT""",
    """CREATE TRIGGER rows_are_not_changed BEFORE UPDATE ON rows
BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END""",
    """CREATE TRIGGER rows_are_not_deleted BEFORE DELETE ON rows
BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END""",
    # Without it, INSERT OR REPLACE would take a row's place and fire no trigger.
    """CREATE TRIGGER rows_come_last BEFORE INSERT ON rows
WHEN NEW.number IS NOT (SELECT coalesce(max(number), 0) + 1 FROM rows)
BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END""",
)
_COLUMNS = "number, at, kind, body, previous, hash"
_MAGIC = b"SQLite format 3\0"


class Ledger(Database):
    """A ledger in its SQLite file; several processes may append to it."""

    kind, version, statements = "ledger", 1, _STATEMENTS
    damage = TrustError

    def append(self, body: Document, now: datetime) -> Row:
        """Add one row and wait until it is on the disk; it is stamped no earlier than the last."""
        with self.transaction():
            return self._append(body, now)

    def append_once(self, body: Document, now: datetime) -> Row:
        """Add a row unless there is one of this kind and body: for work that resumes after a kill.

        Returns the row that was there, or the new one.
        """
        with self.transaction():
            values = self.fetch_one(
                f"SELECT {_COLUMNS} FROM rows WHERE kind = ? AND body = ? LIMIT 1",
                kind_of(body),
                to_canonical(body.model_dump(mode="json")).decode(),
            )
            return self._append(body, now) if values is None else _parse_row(values)

    def head(self) -> Head:
        """Return the last row's number and hash, without looking at the rows before it."""
        last = self._last_row()
        return START if last is None else last.head

    def last_time(self) -> datetime | None:
        """Return when the last row was written; None if there is none."""
        last = self._last_row()
        return None if last is None else parse_time(last.at)

    def receipt_of(self, request: str) -> Row | None:
        """Return the row that names the receipt for a request, if there is one."""
        query = f"SELECT {_COLUMNS} FROM rows WHERE kind = 'receipt' ORDER BY number"
        for row in map(_parse_row, self.fetch_all(query)):
            if isinstance(row.document, ReceiptBody) and row.document.request == request:
                return row
        return None

    def rows(self) -> Generator[Row]:
        """Yield all rows in order, each checked by itself; `verify` checks the chain."""
        with self.errors():
            # By number, so that what is missing or doubled shows; the cursor keeps one row.
            query = f"SELECT {_COLUMNS} FROM rows ORDER BY number"
            with closing(self.connection.execute(query)) as cursor:
                for values in cursor:
                    yield _parse_row(values)

    def verify(self, *expected: Head | None) -> Head:
        """Return the head, or raise at the first row that is altered, removed, moved or doubled.

        With heads as journal and receipts carry them, a cut tail and a rewritten chain are found.
        """
        with closing(self.rows()) as rows:
            return chain_end(rows, *expected)

    def _append(self, body: Document, now: datetime) -> Row:
        last = self._last_row()
        if last is not None:
            now = max(now, parse_time(last.at))
        row = link_row(START if last is None else last.head, body, now)
        if len(row.line) > MAX_ROW_BYTES:
            raise RecordError(
                f"the row takes {len(row.line):,} bytes, expected at most {MAX_ROW_BYTES:,}"
            )
        self.connection.execute(
            f"INSERT INTO rows ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)",
            (
                row.number,
                row.at,
                row.kind,
                to_canonical(row.body).decode(),
                row.previous,
                row.hash,
            ),
        )
        return row

    def _last_row(self) -> Row | None:
        values = self.fetch_one(f"SELECT {_COLUMNS} FROM rows ORDER BY number DESC LIMIT 1")
        return None if values is None else _parse_row(values)


def rows_of_export(path: Path) -> Iterator[Row]:
    """Yield the rows of a ledger, be it a SQLite file or exported lines."""
    if path.exists() and not path.is_file():
        raise RecordError(f"cannot read the ledger {path}: not a regular file")  # a pipe may hang
    try:
        with path.open("rb") as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                file.seek(0)
                yield from parse_lines(file)
                return
    except OSError as error:
        raise RecordError(f"cannot read the ledger {path}: {error.strerror}") from error
    with Ledger(path, read_only=True) as ledger:
        yield from ledger.rows()


def verify_ledger(path: Path, *expected: Head | None) -> Head:
    """Return the head of the ledger at `path`, of either form; see `Ledger.verify`."""
    return chain_end(rows_of_export(path), *expected)


def export_ledger(rows: Iterable[Row], path: Path, *expected: Head | None) -> Head:
    """Write rows as JSON lines, their chain verified on the way."""
    head = START
    with files.replace(path) as temporary, temporary.open("wb") as file:
        for row in walk_chain(rows, *expected):
            file.write(row.line)
            head = row.head
    return head


def _parse_row(values: tuple[Any, ...]) -> Row:
    number, at, kind, body, previous, hash_ = values
    if not isinstance(body, str):
        raise TrustError(f"row {number}: its body is no text")
    try:
        content = parse_json(body.encode(), MAX_ROW_BYTES)
    except TrustError as error:
        raise TrustError(f"row {number}: {error}") from None
    if to_canonical(content) != body.encode():
        raise TrustError(f"row {number}: its body is not in canonical form")
    parts = {"at": at, "kind": kind, "body": content, "previous": previous, "hash": hash_}
    return checked_row({"number": number, **parts})


def parse_lines(file: BinaryIO) -> Iterator[Row]:
    """Yield the rows of an exported ledger, each line canonical to the byte."""
    number = 0
    while line := file.readline(MAX_ROW_BYTES + 1):
        number += 1
        try:
            if not line.endswith(b"\n"):
                raise TrustError("too long or cut off: a row ends with a newline")
            value = parse_json(line[:-1], MAX_ROW_BYTES)
            if to_canonical(value) != line[:-1]:
                raise TrustError("not in canonical form, as rows are written")
            row = checked_row(value)
        except TrustError as error:
            raise TrustError(f"line {number}: {error}") from None
        yield row


def walk_chain(rows: Iterable[Row], *expected: Head | None) -> Iterator[Row]:
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


def chain_end(rows: Iterable[Row], *expected: Head | None) -> Head:
    """Walk along all rows and return the head."""
    last = deque(walk_chain(rows, *expected), maxlen=1)
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
