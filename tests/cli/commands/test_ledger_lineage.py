from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.erasure import papers
from harness.flower.small import Federation
from secede.cli.commands.ledger import lineage
from secede.erasure.storage.model_registry import Candidate, ModelRegistry
from secede.errors import ConfigError

Capture = pytest.CaptureFixture[str]


def test_lineage_answers_who_is_still_carried(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "lineage.db"
    with ModelRegistry(path) as registry:
        pass
    lineage(path)
    assert capsys.readouterr().out == "no models yet\n"
    one, two = "1" * 64, "2" * 64
    with ModelRegistry(path) as registry:
        first = Candidate(digest=one, parent=None, run="run", round=1, clients=("a", ":no:"))
        registry.promote(first, papers.NOW)
    lineage(path, "a")
    said = capsys.readouterr().out
    assert "1 model still carries 'a', and it serves; 'a' was not erased." in said
    assert ":no:" in said
    with ModelRegistry(path) as registry:
        made = Candidate(digest=two, parent=one, run="run", round=2, clients=(":no:",))
        registry.promote_erased(made, client="a", request=papers.REQUEST, now=papers.NOW)
    lineage(path, "a")
    assert capsys.readouterr().out == "No model in use carries 'a'; it was erased.\n"
    with pytest.raises(ConfigError, match="no model ever carried 'A'"):
        lineage(path, "A")
    lineage(path, json=True)
    told = json.loads(capsys.readouterr().out)
    assert [model["status"] for model in told["models"]] == ["retired", "serving"]
    assert told["erased_clients"] == ["a"]


def test_the_registry_keeps_digests_and_dates_whole_at_80_columns(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    names = tuple(f"clinic-{number:02}" for number in range(20))
    with ModelRegistry(tmp_path / "lineage.db") as registry:
        made = Candidate(digest="1" * 64, parent=None, run="north", round=1, clients=names)
        registry.promote(made, papers.NOW)
    lineage(tmp_path / "lineage.db")
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split()[0] == "1" * 12
    assert lines[0].endswith(f"serving since {papers.NOW:%Y-%m-%d}")
    assert all(any(name in line for line in lines) for name in names)


def test_lineage_names_who_is_in_the_model_of_a_training_on_flower(
    tmp_path: Path, capsys: Capture
) -> None:
    federation, home = Federation(tmp_path), tmp_path / "home"
    federation.train(1)  # nothing was erased yet, so no model is registered
    lineage(home, "site-1")
    said = capsys.readouterr().out
    assert "1 model still carries 'site-1', and it does not serve; 'site-1' was not erased." in said
    assert "unregistered since" in said
    with pytest.raises(ConfigError, match="no model ever carried 'site-9'"):
        lineage(home, "site-9")
    federation.erase("name:site-1")
    lineage(home, "site-1")
    assert capsys.readouterr().out == "No model in use carries 'site-1'; it was erased.\n"
    federation.train(1)
    lineage(home, json=True)
    models = json.loads(capsys.readouterr().out)["models"]
    assert [model["status"] for model in models] == ["retired", "serving", "unregistered"]
    assert models[-1]["clients"] == ["site-0", "site-2", "site-3"]
