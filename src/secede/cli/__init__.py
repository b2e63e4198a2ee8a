"""The command line: thin commands over the library. Nothing heavy is imported until it is used."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

from secede.errors import SecedeError
from secede.text import printable_lines

logger = logging.getLogger(__name__)


def main() -> None:
    """Run the command line."""
    from secede.cli.app import app

    run(app, "secede")


def run(app: Callable[[], object], name: str) -> None:
    """Run an app; an error that the user can fix is one line and an exit code."""
    try:
        app()
    except SecedeError as error:
        logger.debug("stopped by %s", type(error).__name__, exc_info=error)
        print(f"{name}: {printable_lines(error)}", file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.stderr.close()  # whoever read our output has closed it
        sys.exit(141)
