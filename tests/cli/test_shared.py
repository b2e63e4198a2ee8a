from __future__ import annotations

import re
from pathlib import Path

import pytest

from secede.cli.shared import naming
from secede.errors import TrustError


def test_an_error_names_its_file_once(tmp_path: Path) -> None:
    for text in ("cut short", f"{tmp_path}: cut short"):
        with pytest.raises(TrustError, match=f"^{re.escape(str(tmp_path))}: cut short$"):  # noqa: SIM117
            with naming(tmp_path):
                raise TrustError(text)
