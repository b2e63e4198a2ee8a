"""Skips what needs NVFlare where it is not installed."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest


def needs_nvflare() -> None:
    """Skip with a reason; in CI, where it must be installed, fail."""
    if find_spec("nvflare") is not None:
        return
    message = "NVFlare is not installed: pip install '.[nvflare]' in a checkout"
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)
