"""The command line: thin commands over the library. Nothing heavy is imported until it is used."""

from __future__ import annotations

import sys

from secede.errors import SecedeError


def main() -> None:
    """Run the command line; errors that are the user's to mend are one line and an exit code."""
    from secede.cli.app import app

    try:
        app()
    except SecedeError as error:
        print(f"secede: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output left; nothing more to say
        sys.exit(141)
