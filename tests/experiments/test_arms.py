from __future__ import annotations

from pathlib import Path

import pytest

import tiny
from experiments.test_runner import run
from secede.errors import ConfigError

HISTORY = """
methods = ["federaser"]
settings.federaser.interval = 3
situation = { history = true, history_interval = 2 }
"""


def test_a_history_that_does_not_fit_the_method_is_told_before_anything_runs(
    tmp_path: Path,
) -> None:
    with pytest.raises(ConfigError, match=r"interval is 3, but the history holds every 2\. round"):
        run(tmp_path, tiny.CONFIG + HISTORY)
    assert not list((tmp_path / "runs").rglob("*"))
