from __future__ import annotations

from pathlib import Path

import pytest

from harness import tiny
from harness.runs import run
from secede.errors import ConfigError

HISTORY = """
methods = ["federaser"]
settings.federaser.interval = 3
situation = { history = true, history_interval = 2 }
"""


def test_a_history_that_does_not_fit_the_method_is_told_before_anything_runs(
    tmp_path: Path,
) -> None:
    with pytest.raises(
        ConfigError,
        match=r"interval\) is 3, expected a multiple of situation.history_interval, which is 2",
    ):
        run(tmp_path, tiny.CONFIG + HISTORY)
    assert not list((tmp_path / "runs").rglob("*"))


def test_a_network_that_does_not_fit_the_method_is_told_before_anything_runs(
    tmp_path: Path,
) -> None:
    layers = 'methods = ["weight-negation"]\nsettings.weight-negation.layers = ["conv9"]\n'
    with pytest.raises(
        ConfigError, match="method 'weight-negation': the model has no layer 'conv9'"
    ):
        run(tmp_path, tiny.CONFIG + layers)
    assert not list((tmp_path / "runs").rglob("*"))
