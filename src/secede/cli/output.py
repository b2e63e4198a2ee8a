"""What commands print: results on standard output, log lines on standard error and in a file."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from secede import __version__, files, logs
from secede.errors import StorageError, TrustError

logger = logging.getLogger(__name__)


def print_json(value: object) -> None:
    """Print a result for scripts."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name the file in an error about its content."""
    try:
        yield
    except TrustError as error:
        text = str(error)
        raise TrustError(text if text.startswith(str(path)) else f"{path}: {text}") from error


class _Format(logging.Formatter):
    """INFO lines as they are, others with their level."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line, or more with a traceback."""
        line = super().format(record)
        if record.levelno >= logging.WARNING:
            return f"{record.levelname.lower()}: {line}"
        return f"debug: {record.name}: {line}" if record.levelno < logging.INFO else line


class _Terminal(logs.LineHandler):
    """The one handler that prints on standard error."""

    def __init__(self, level: int) -> None:
        super().__init__(_print, level)
        self.setFormatter(_Format())


class _LogFile(logging.FileHandler):
    """The one handler that writes a file."""

    def __init__(self, path: Path) -> None:
        try:
            with files.private():
                files.make_folder(path.absolute().parent)
            path.touch(0o600)
            super().__init__(path, encoding="utf-8")
        except OSError as error:
            raise StorageError(f"cannot write the log file {path}: {error.strerror}") from error
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        self.setLevel(logging.DEBUG)


def show_log(*, verbose: bool = False, file: Path | None = None) -> None:
    """Print log lines on standard error from now on, and write all of them to `file`."""
    for handler in list(logs.LOGGER.handlers):
        if isinstance(handler, _Terminal | _LogFile):
            logs.LOGGER.removeHandler(handler)
            handler.close()
    logs.add(_Terminal(logging.DEBUG if verbose else logging.INFO))
    if file is not None:
        logs.add(_LogFile(file))
    logger.debug("secede %s: %s", __version__, " ".join(sys.argv[1:]))


def _print(line: str) -> None:
    # In one piece: print() would write the line's end on its own, after another thread's line.
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
