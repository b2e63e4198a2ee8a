"""Changes a database behind the back of its triggers."""

from __future__ import annotations

import sqlite3
from pathlib import Path


def tamper(path: Path, *statements: str) -> None:
    """Change a ledger behind the back of its triggers."""
    connection = sqlite3.connect(path)
    found = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")
    triggers = found.fetchall()
    for name, _ in triggers:
        connection.execute(f"DROP TRIGGER {name}")
    for statement in (*statements, *(sql for _, sql in triggers)):
        connection.execute(statement)
    connection.commit()
    connection.close()
