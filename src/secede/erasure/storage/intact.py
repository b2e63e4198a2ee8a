"""Before a database is opened for writing: make it whole, refuse it damaged, bring it up to date.

A damaged or newer file is only ever read here, so that nothing of it is lost: a connection that
may write would move its log into it. A new file appears with all its tables at once.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from secede.erasure.newfile import write_new
from secede.errors import RecordError, StorageError

# Takes the tables from the version it is listed under to the next; runs inside a transaction.
Migration = Callable[[sqlite3.Connection], None]

WAIT_SECONDS = 10.0
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


def prepare(
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
            write_new(path, _empty(schema, version), 0o600)
    found = check(path, what, schema, version)
    if found < version:
        _migrate(path, what, version, migrations)


def check(path: Path, what: str, schema: Sequence[str], version: int) -> int:
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
