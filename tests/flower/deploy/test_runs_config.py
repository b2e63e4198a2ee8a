from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from secede.errors import ConfigError
from secede.flower.deploy import runs
from secede.flower.deploy.scaffold import write_project

OLDER = """\
[tool.flwr.app.config]
num-server-rounds = 10
erasure = { home = "there", leaver = "" }
"""
ERASE = {"erasure.home": "h", "erasure.leaver": "name:a", "erasure.trigger": "other"}


def test_an_app_of_an_older_version_is_told_what_to_add(tmp_path: Path) -> None:
    path = tmp_path / "pyproject.toml"
    path.write_text(OLDER)
    runs.check_config(tmp_path, {"num-server-rounds": 3, "erasure.home": "h"})
    with pytest.raises(
        ConfigError, match=r"has no erasure.trigger, erasure.options under"
    ) as found:
        runs.check_config(tmp_path, {**ERASE, "erasure.options": "{}"})
    line = 'erasure = { home = "there", leaver = "", trigger = "", options = "" }'
    assert f"    {line}\n" in str(found.value)
    assert "if erase_if_asked(grid, strategy, store, context):" in str(found.value)
    assert path.read_text() == OLDER  # it is for its owner to add them
    old = 'erasure = { home = "there", leaver = "" }'
    path.write_text(OLDER.replace(old, line))
    runs.check_config(tmp_path, {**ERASE, "erasure.options": "{}"})


def test_every_key_that_is_missing_is_told_as_it_is_to_be_written(tmp_path: Path) -> None:
    path = tmp_path / "pyproject.toml"
    path.write_text("")
    with pytest.raises(ConfigError, match=r"has no num-server-rounds, erasure.home") as found:
        runs.check_config(tmp_path, {"num-server-rounds": 3, "erasure.home": ""})
    written = [line for line in str(found.value).splitlines() if " = " in line]
    path.write_text("\n".join(["[tool.flwr.app.config]", *written]))
    runs.check_config(tmp_path, {"num-server-rounds": 3, "erasure.home": "", **ERASE})
    path.write_text("[")
    with pytest.raises(ConfigError, match=r"pyproject.toml cannot be read"):
        runs.check_config(tmp_path, {})


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("tool = 3", r"pyproject.toml: tool is of type int, expected a table \[tool.flwr"),
        ("[tool]\nflwr = 'x'", "flwr is of type str"),
        ("[[tool.flwr.app.config]]", "config is of type list"),
        ("[tool.flwr.app.config.erasure]\nhome = 2026-11-16", "erasure.home .* is of type date,"),
        ("[tool.flwr.app.config.erasure]\nhome = ['x']", "erasure.home .* expected text"),
    ],
)
def test_what_is_no_config_is_told_and_where(tmp_path: Path, written: str, words: str) -> None:
    (tmp_path / "pyproject.toml").write_text(written)
    with pytest.raises(ConfigError, match=words):
        runs.check_config(tmp_path, ERASE)


def test_what_an_app_has_of_its_own_is_told_as_toml(tmp_path: Path) -> None:
    path = tmp_path / "pyproject.toml"
    mine = 'erasure = { own = { a = 1, b = true }, rate = inf, day = "2026-11-16" }'
    path.write_text(f"[tool.flwr.app.config]\n{mine}\n")
    with pytest.raises(ConfigError, match=r"has no erasure.home") as found:
        runs.check_config(tmp_path, ERASE)
    (line,) = [line for line in str(found.value).splitlines() if " = " in line]
    path.write_text(f"[tool.flwr.app.config]\n{line}\n")
    runs.check_config(tmp_path, ERASE)
    before, after = (tomllib.loads(text)["erasure"] for text in (mine, line))
    assert before.items() <= after.items()


def test_a_fresh_project_lacks_nothing(tmp_path: Path) -> None:
    project = write_project(tmp_path / "p", sites=["a", "b"])
    every = {**ERASE, "erasure.options": "{}", "num-server-rounds": 3}
    runs.check_config(project.app, every)
