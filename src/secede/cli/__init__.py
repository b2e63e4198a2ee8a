"""The command line: thin commands over the library. Nothing heavy is imported until it is used."""

from __future__ import annotations

import logging
import sys

from secede.errors import SecedeError
from secede.text import printable_lines

logger = logging.getLogger(__name__)


def main() -> None:
    """Run the command line; an error that the user can fix is one line and an exit code."""
    from secede.cli.app import app

    try:
        app()
    except SecedeError as error:
        logger.debug("stopped by %s", type(error).__name__, exc_info=error)
        print(f"secede: {printable_lines(error)}", file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.stderr.close()  # whoever read our output has closed it
        sys.exit(141)
