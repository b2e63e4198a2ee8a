from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.nvflare.needs import needs_nvflare

if TYPE_CHECKING:
    from harness.nvflare.inprocess import Job

# Its modules import NVFlare: where that is not there, one test says so.
collect_ignore = (
    []
    if find_spec("nvflare")
    else ["test_canaries.py", "test_docs.py", "test_erasing.py", "test_tasks.py"]
)


@pytest.fixture(autouse=True)
def _installed() -> None:
    needs_nvflare()


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    from harness.nvflare.inprocess import make

    return make(tmp_path, monkeypatch)
