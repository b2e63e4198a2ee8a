"""The command line, called in this process."""

from __future__ import annotations

import json
from typing import Any

from click.testing import Result
from typer.testing import CliRunner

from secede.cli.app import app


def secede(*arguments: object) -> Result:
    """Call a command; an error of ours is raised here, another exit code is in the result."""
    texts = [str(argument) for argument in arguments]
    return CliRunner().invoke(app, texts, catch_exceptions=False)


def secede_json(*arguments: object) -> Any:
    """Call a command with --json and return what it prints."""
    return json.loads(secede(*arguments, "--json").stdout)
