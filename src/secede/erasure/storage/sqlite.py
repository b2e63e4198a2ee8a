"""SQLite files of a known schema: the journal, the ledger and the registry of models.

Write-ahead log, synchronous FULL, foreign keys on. A new file appears whole. A file must hold
exactly the tables, indexes and triggers of its schema: a dropped trigger, or a view in a table's
place, is damage. A refused file is left as it is.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, Self

from secede import files
from secede.errors import RecordError, SecedeError, StorageError
from secede.text import printable

VALUE_BYTES = 1 << 24  # a longer text or blob is damage
# Of a schema: steps of SQLite's machine to read it, and bytes of a statement. Ours take hundreds.
_SCHEMA_STEPS, _STATEMENT_BYTES = 2_000, 1 << 14
WAIT_SECONDS = 10.0  # for another process's transaction
_WAL_VERSIONS = slice(18, 20)  # bytes of the header: 2 and 2 mean write-ahead log
# SQLITE_ERROR: a statement of ours does not fit what the file holds.
_DAMAGE = {
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_TOOBIG,
    sqlite3.SQLITE_ERROR,
    sqlite3.SQLITE_INTERRUPT,  # by us: the schema takes more steps than ours
}
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


class Database:
    """One SQLite file, made if it is missing unless it is `read_only`."""

    kind: ClassVar[str]  # as errors call the file
    version: ClassVar[int]  # of the schema
    statements: ClassVar[tuple[str, ...]]
    damage: ClassVar[type[SecedeError]] = RecordError  # raised for a damaged file
    # Integrity is checked at each opening. For a large file whose rows are checked otherwise, off.
    check_integrity: ClassVar[bool] = False

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self.path = path
        if not read_only:
            self._create()
        elif not path.is_file():
            raise RecordError(f"{path}: no such {self.kind}")
        with self.errors():
            # Closing a writable connection would move the log into a file that is refused.
            self.connection = self._connect(_read_only_mode(path) if read_only else "mode=ro")
            try:
                self._check()
                if not read_only:
                    self.connection.close()
                    self.connection = self._connect("mode=rw")
            except BaseException:
                self.connection.close()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self.connection.close()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Lock the file for one transaction: all of it is written, or nothing."""
        with self.errors():
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield self.connection
                self.connection.execute("COMMIT")
            finally:
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")

    def fetch_one(self, query: str, *values: object) -> tuple[Any, ...] | None:
        """Return the first row of a query's result; None if it is empty."""
        with self.errors():
            row: tuple[Any, ...] | None = self.connection.execute(query, values).fetchone()
        return row

    def fetch_all(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """Return all rows of a query's result."""
        with self.errors():
            return self.connection.execute(query, values).fetchall()

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn SQLite's errors into ours, each one line."""
        try:
            yield
        except UnicodeDecodeError as error:  # SQLite's message quotes a damaged name
            raise self._damaged("a name in it is no text") from error
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", None)
            primary = code & 0xFF if code is not None else None
            if primary is None or primary in _DAMAGE or isinstance(error, sqlite3.IntegrityError):
                raise self._damaged(error) from error
            if primary in _BUSY:
                raise StorageError(
                    f"{self.path} has been in use by another process for {WAIT_SECONDS:g} seconds; "
                    "try again"
                ) from error
            raise StorageError(f"cannot use {self.path}: {printable(error)}") from error

    def _create(self) -> None:
        """Make the file if it is missing: whole, and for its owner alone."""
        log = _log(self.path)
        if self.path.exists():
            return
        if log.exists():
            raise RecordError(
                f"{self.path}: the {self.kind} is missing, but its log {log.name} is there: "
                "restore both"
            )
        with suppress(FileExistsError):  # another process was faster, and its file is whole too
            files.create(self.path, self._empty_file(), 0o600)

    def _empty_file(self) -> bytes:
        with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
            for statement in self.statements:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {self.version}")
            content = bytearray(connection.serialize())
        content[_WAL_VERSIONS] = b"\2\2"
        return bytes(content)

    def _connect(self, mode: str) -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"{self.path.resolve().as_uri()}?{mode}",
            uri=True,
            timeout=WAIT_SECONDS,
            isolation_level=None,
            cached_statements=16,
        )
        try:
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _STATEMENT_BYTES)
            connection.set_progress_handler(lambda: True, _SCHEMA_STEPS)  # true ends it
            for pragma in ("trusted_schema = OFF", "foreign_keys = ON", "synchronous = FULL"):
                connection.execute(f"PRAGMA {pragma}")
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            connection.set_progress_handler(None, 0)
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, VALUE_BYTES)
        except BaseException:
            connection.close()
            raise
        return connection

    def _check(self) -> None:
        """Raise unless the file is sound and of this schema and version."""
        name, expected = self.kind, self.version
        (version,) = self.connection.execute("PRAGMA user_version").fetchone()
        if version not in (0, expected):  # 0: of a file that is not secede's
            raise RecordError(
                f"{self.path}: {name} of version {version}, expected version {expected}: use the "
                "release of secede that wrote it"
            )
        if version != expected or _statements(self.connection) != {*self.statements}:
            raise self.damage(
                f"{self.path}: not a {name}, or its tables or triggers were changed; it is left as "
                "it is"
            )
        if self.check_integrity:
            self._check_integrity()

    def _check_integrity(self) -> None:
        """Raise unless every page, index, constraint and reference is as it should be."""
        (result,) = self.connection.execute("PRAGMA integrity_check(1)").fetchone()
        if result != "ok":
            raise self._damaged(result)
        if self.connection.execute("PRAGMA foreign_key_check").fetchone():
            raise self._damaged("a row is missing")
        (page,) = self.connection.execute("PRAGMA page_size").fetchone()
        # SQLite reads a page that is cut short as if zeros followed. With a log that is sound: the
        # page may be one that was being moved from there.
        if self.path.stat().st_size % page and not _size(_log(self.path)):
            raise self._damaged("its end is missing")

    def _damaged(self, reason: object) -> SecedeError:
        return self.damage(
            f"{self.path}: damaged {self.kind} ({printable(reason)[:200]}); it is left as "
            "it is: restore it from a backup"
        )


def _statements(connection: sqlite3.Connection) -> set[str]:
    """Return the statements that made what is in the file, automatic indexes left out."""
    rows: Sequence[tuple[str]] = connection.execute(
        "SELECT coalesce(sql, type) FROM sqlite_master WHERE NOT (type = 'index' AND sql IS NULL)"
    ).fetchall()
    return {str(sql) for (sql,) in rows}


def _read_only_mode(path: Path) -> str:
    """Return how to open a file without leaving others beside it: without a log nobody writes."""
    return "mode=ro" if _log(path).exists() else "mode=ro&immutable=1"


def _log(path: Path) -> Path:
    return path.resolve().with_name(f"{path.resolve().name}-wal")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
