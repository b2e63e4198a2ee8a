"""A small trained federation in a home folder: one for a module, a copy of it for each test."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.erasure import small
from secede.erasure.storage.home import Home


@pytest.fixture(scope="module")
def founded(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return small.make(tmp_path_factory.mktemp("founded"))


@pytest.fixture
def home(founded: Home, tmp_path: Path) -> Home:
    return small.copy(founded, tmp_path / "home")
