"""Log lines of the library on standard error, as the command line shows them."""

from __future__ import annotations

import logging
import sys

from secede import logs


class _Shown(logs.LineHandler):
    """The command line's own handler, of which there is one."""


def show_log_lines(level: int = logging.INFO) -> None:
    """Print log lines on standard error from now on."""
    for handler in logs.LOGGER.handlers:
        if isinstance(handler, _Shown):
            logs.LOGGER.removeHandler(handler)
    logs.add(_Shown(_print, level))


def _print(line: str) -> None:
    # In one piece: print() would write the line's end on its own, after another thread's line.
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
