"""SQLite files that survive kills and refuse surprises: how the ledger and the registry are opened.

Write-ahead log, synchronous FULL, foreign keys on. A file must hold exactly the tables, indexes
and triggers it was made with: a dropped trigger or a view in a table's place is damage.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from secede import files
from secede.errors import RecordError, SecedeError, StorageError

# Takes the tables from the version it is listed under to the next; runs inside a transaction.
Migration = Callable[[sqlite3.Connection], None]


_DISK = {
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
}
_WAL_VERSIONS = slice(18, 20)  # bytes of the header: 2 and 2 mean write-ahead log


def prepare_file(
    path: Path,
    what: str,
    schema: Sequence[str],
    version: int,
    migrations: Mapping[int, Migration],
) -> None:
    """Make `path` a whole database of this schema and version, or raise and change nothing."""
    log = _log(path)
    if not path.exists():
        if log.exists():
            raise RecordError(
                f"{path}: the {what} is missing, but its log {log.name} is there: restore both"
            )
        with suppress(FileExistsError):  # another process was faster, and its file is whole too
            files.create(path, _empty(schema, version), 0o600)
    found = check_file(path, what, schema, version)
    if found < version:
        _migrate(path, what, version, migrations)


def check_file(path: Path, what: str, schema: Sequence[str], version: int) -> int:
    """Return the version of a sound database; a damaged, foreign or newer one raises."""
    with _explained(path, what), closing(_connect(path, "ro")) as connection:
        (found,) = connection.execute("PRAGMA user_version").fetchone()
        if found > version:
            raise RecordError(
                f"{path}: {what} of version {found}, this secede knows up to {version}; "
                "use a newer one"
            )
        if found < 1 or (found == version and _objects(connection) != set(schema)):
            raise RecordError(
                f"{path}: not a {what}, or its tables or triggers were changed; it is left as it is"
            )
        check_content(connection, path, what)
    return int(found)


def check_content(connection: sqlite3.Connection, path: Path, what: str) -> None:
    """Raise unless every page, index, constraint and reference is as it should be."""
    with _explained(path, what):
        (told,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
        if told != "ok":
            raise RecordError(f"{path}: damaged {what} ({_printable(told)}); restore it")
        if connection.execute("PRAGMA foreign_key_check").fetchone():
            raise RecordError(f"{path}: damaged {what} (a row is missing); restore it")
        (page,) = connection.execute("PRAGMA page_size").fetchone()
    # SQLite takes a page that is cut short as if zeros followed. With a log that is sound: the
    # page may be one that was being moved from there.
    if path.stat().st_size % page and not _size(_log(path)):
        raise RecordError(f"{path}: damaged {what} (its end is missing); restore it")


def _objects(connection: sqlite3.Connection) -> set[str]:
    """Return the statements that made what is in the file, automatic indexes left out."""
    found = connection.execute(
        "SELECT coalesce(sql, type) FROM sqlite_master WHERE NOT (type = 'index' AND sql IS NULL)"
    )
    return {str(sql) for (sql,) in found}


def _log(path: Path) -> Path:
    return path.resolve().with_name(f"{path.resolve().name}-wal")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _migrate(path: Path, what: str, version: int, migrations: Mapping[int, Migration]) -> None:
    with _explained(path, what), closing(_connect(path, "rw")) as connection:
        connection.execute("BEGIN IMMEDIATE")
        try:
            (found,) = connection.execute("PRAGMA user_version").fetchone()
            for step in range(found, version):  # none where another process was faster
                if step not in migrations:
                    raise RecordError(f"{path}: no way leads from version {step} of a {what} on")
                migrations[step](connection)
                connection.execute(f"PRAGMA user_version = {step + 1}")
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")


def _empty(schema: Sequence[str], version: int) -> bytes:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        for statement in schema:
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {version}")
        content = bytearray(connection.serialize())
    content[_WAL_VERSIONS] = b"\2\2"
    return bytes(content)


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{path.resolve().as_uri()}?mode={mode}",
        uri=True,
        timeout=WAIT_SECONDS,
        isolation_level=None,
    )
    for pragma in ("trusted_schema = OFF", "synchronous = FULL"):
        connection.execute(f"PRAGMA {pragma}")
    return connection


@contextmanager
def _explained(path: Path, what: str) -> Iterator[None]:
    try:
        yield
    # Python fails to decode SQLite's message where it quotes damaged text.
    except (sqlite3.Error, UnicodeDecodeError) as error:
        code = getattr(error, "sqlite_errorcode", None)
        if code is not None and code & 0xFF in _DISK:
            raise StorageError(f"cannot use {path}: {error}") from error
        told = "" if isinstance(error, UnicodeDecodeError) else f" ({_printable(error)})"
        raise RecordError(
            f"{path}: damaged {what}{told}; it is left as it is: restore it from a backup"
        ) from error


def _printable(told: object) -> str:
    """Return a message in one line; where it quotes damaged names, they may hold anything."""
    return "".join(c if c.isprintable() else "?" for c in str(told))[:200]


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
