"""Where the project and its tests lie."""

from __future__ import annotations

from pathlib import Path

HARNESS = Path(__file__).parent
TESTS = HARNESS.parent
ROOT = TESTS.parent
