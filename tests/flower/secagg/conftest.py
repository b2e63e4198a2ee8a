from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.flower.secure import SecureFederation


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    log = logging.getLogger("flwr")
    before = log.level
    log.setLevel(logging.CRITICAL)
    yield
    log.setLevel(before)


@pytest.fixture
def federation(tmp_path: Path) -> SecureFederation:
    return SecureFederation(tmp_path)
