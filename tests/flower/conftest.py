from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.flower.small import Federation, one_thread


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    return Federation(tmp_path)
