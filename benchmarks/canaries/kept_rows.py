"""Rows of a long measurement, each kept in a file once it is there: a killed one goes on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from secede import files

Row = dict[str, Any]


class KeptRows:
    """Rows by key; a row that is there is not measured again."""

    def __init__(self, path: Path | None = None) -> None:
        """Keep rows in the file `path`; without one, in memory alone."""
        self._path, self._rows = path, dict[str, Row]()
        if path is not None and path.exists():
            lines = path.read_text().splitlines(keepends=True)
            whole = [line for line in lines if line.endswith("\n")]  # a kill may cut the last one
            if whole != lines:
                files.write_text(path, "".join(whole))
            self._rows = {kept.pop("key"): kept for kept in map(json.loads, whole)}

    def row(self, key: str, measure: Callable[[], Row]) -> Row:
        """Return the row of `key`, measured now if it is not there."""
        if key not in self._rows:
            self._rows[key] = measure()
            if self._path is not None:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                files.append_line(self._path, json.dumps({"key": key, **self._rows[key]}))
        return self._rows[key]
