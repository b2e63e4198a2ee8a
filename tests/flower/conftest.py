from __future__ import annotations

from pathlib import Path

import pytest

from harness.flower.small import Federation


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return Federation(tmp_path)
