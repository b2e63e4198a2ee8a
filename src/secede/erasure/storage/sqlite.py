"""SQLite files that survive kills and refuse surprises: how the ledger and the registry are opened.

Write-ahead log, synchronous FULL, foreign keys on. A file must hold exactly the tables, indexes
and triggers it was made with: a dropped trigger or a view in a table's place is damage.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from secede import files
from secede.errors import RecordError, SecedeError, StorageError

VALUE_BYTES = 1 << 24  # a longer text or blob is damage
WAIT_SECONDS = 10.0
# SQLITE_ERROR: a statement of ours does not fit what the file holds.
_DAMAGE = {
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_TOOBIG,
    sqlite3.SQLITE_ERROR,
}
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


class Database:
    """One SQLite file of a known schema."""

    def __init__(
        self,
        path: Path,
        what: str,
        schema: Sequence[str],
        *,
        version: int,
        read_only: bool = False,
        damage: type[SecedeError] = RecordError,
    ) -> None:
        self.path, self.what, self.damage = path, what, damage
        if read_only and not path.is_file():
            raise RecordError(f"{path}: no such {what}")
        with self.errors():
            self.connection = self._open(read_only)
            try:
                if not read_only:
                    self._prepare(schema, version)
                self._check(schema, version)
            except BaseException:
                self.connection.close()
                raise

    def close(self) -> None:
        """Let the file go."""
        self.connection.close()

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Hold the file for one transaction: all of it is kept, or nothing."""
        with self.errors():
            self.connection.execute("BEGIN IMMEDIATE")
            try:
                yield self.connection
                self.connection.execute("COMMIT")
            finally:
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn SQLite's errors into ours, each one line."""
        try:
            yield
        except UnicodeDecodeError as error:  # SQLite's message quotes a spoilt name
            raise self.damage(f"{self.path}: damaged {self.what}") from error
        except sqlite3.Error as error:
            told = "".join(letter if letter.isprintable() else "?" for letter in str(error))
            code = getattr(error, "sqlite_errorcode", None)
            kind = code & 0xFF if code is not None else None
            if kind is None or kind in _DAMAGE or isinstance(error, sqlite3.IntegrityError):
                raise self.damage(f"{self.path}: damaged {self.what} ({told})") from error
            if kind in _BUSY:
                raise StorageError(
                    f"{self.path} has been in use by another process for {WAIT_SECONDS:g} seconds; "
                    "try again"
                ) from error
            raise StorageError(f"cannot use {self.path}: {told}") from error

    def _open(self, read_only: bool) -> sqlite3.Connection:
        address = self.path.resolve().as_uri()
        if read_only:
            # Without a log beside it nobody is writing, and reading must leave no files behind.
            log = self.path.resolve().with_name(f"{self.path.resolve().name}-wal")
            address += "?mode=ro" if log.exists() else "?mode=ro&immutable=1"
        else:
            try:  # for its owner alone; SQLite makes the log beside it alike
                files.make_folder(self.path.parent)
                os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
            except OSError as error:
                raise StorageError(f"cannot use {self.path}: {error.strerror}") from error
        connection = sqlite3.connect(
            address, uri=True, timeout=WAIT_SECONDS, isolation_level=None, cached_statements=16
        )
        try:
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, VALUE_BYTES)
            for pragma in ("trusted_schema = OFF", "foreign_keys = ON", "synchronous = FULL"):
                connection.execute(f"PRAGMA {pragma}")
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, schema: Sequence[str], version: int) -> None:
        if self._version() or self._objects():
            self._check(schema, version)  # before anything in a foreign file is touched
            self._use_log()
            return
        self._use_log()
        with self.writing() as connection:
            if not self._version():  # nobody else was faster
                for statement in schema:
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version = {version}")

    def _use_log(self) -> None:
        """Switch to the write-ahead log; SQLite does not wait for others by itself here."""
        for attempt in range(50):
            try:
                self.connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if attempt == 49 or error.sqlite_errorcode & 0xFF not in _BUSY:
                    raise
                time.sleep(WAIT_SECONDS / 50)

    def _check(self, schema: Sequence[str], version: int) -> None:
        found = self._version()
        if found > version:
            raise RecordError(
                f"{self.path}: {self.what} of version {found}, this secede knows {version}; "
                "use a newer one"
            )
        if found != version or self._objects() != set(schema):
            raise self.damage(
                f"{self.path}: not a {self.what}, or its tables and triggers were changed"
            )

    def _version(self) -> int:
        (version,) = self.connection.execute("PRAGMA user_version").fetchone()
        return int(version)

    def _objects(self) -> set[str]:
        """Return the statements that made what is in the file, automatic indexes left out."""
        found = self.connection.execute(
            "SELECT coalesce(sql, type) FROM sqlite_master WHERE NOT "
            "(type = 'index' AND sql IS NULL)"
        )
        return {str(sql) for (sql,) in found}
