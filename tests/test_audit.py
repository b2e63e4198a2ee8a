"""What CI says of known vulnerabilities, with and without a network."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.paths import ROOT

FINE = {"name": "numpy", "version": "2.4.6", "vulns": []}
SKIPPED = {"name": "torch", "version": "2.13.0", "skip_reason": "not found on PyPI"}
BAD = {"name": "x", "version": "1", "vulns": [{"id": "CVE-2026-1", "fix_versions": ["2"]}]}


def audit(folder: Path, packages: list[dict[str, Any]] | None, code: int) -> tuple[int, str]:
    report = "" if packages is None else json.dumps({"dependencies": packages, "fixes": []})
    tool = folder / "pip-audit"
    tool.write_text(
        f"#!/bin/sh\ncat <<'END'\n{report}\nEND\necho 'no route to host' >&2\nexit {code}\n"
    )
    tool.chmod(0o755)
    done = subprocess.run(
        [sys.executable, ROOT / ".ci" / "audit.py"],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"},
    )
    return done.returncode, done.stdout


def test_a_known_vulnerability_fails_ci_and_names_the_version_without_it(tmp_path: Path) -> None:
    code, told = audit(tmp_path, [FINE, BAD, SKIPPED], 1)
    assert code == 1
    assert "x 1: CVE-2026-1, fixed in 2\n" in told
    assert "2 of 3 packages, 1 vulnerable" in told


def test_without_a_vulnerability_ci_goes_on(tmp_path: Path) -> None:
    assert audit(tmp_path, [FINE, SKIPPED], 0) == (
        0,
        "audit: 1 of 2 packages, 0 vulnerable\n",
    )


@pytest.mark.parametrize(
    ("packages", "code", "reason"),
    [
        pytest.param([SKIPPED, SKIPPED], 0, "not found on PyPI", id="an index without a database"),
        pytest.param(None, 1, "no route to host", id="no network"),
    ],
)
def test_without_a_database_one_line_says_that_nothing_was_audited(
    tmp_path: Path, packages: list[dict[str, Any]] | None, code: int, reason: str
) -> None:
    assert audit(tmp_path, packages, code) == (
        0,
        f"audit: NOTHING was audited, no vulnerability database answers here ({reason})\n",
    )
