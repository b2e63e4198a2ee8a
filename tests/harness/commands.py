"""The command line in this process: one of its own takes seconds to import torch."""

from __future__ import annotations

import io
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from secede.cli import main


def secede(*arguments: str, cwd: Path = Path()) -> CompletedProcess[str]:
    """Run `secede` with these arguments in a folder."""
    code, stdout, stderr = 0, io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        chdir(cwd),
        redirect_stdout(stdout),
        redirect_stderr(stderr),
    ):
        patch.setattr(sys, "argv", ["secede", *arguments])
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
    return CompletedProcess(["secede", *arguments], code, stdout.getvalue(), stderr.getvalue())
