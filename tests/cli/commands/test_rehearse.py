"""`cli/commands/audit/rehearse.py`, and what `secede erase` makes of its file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from harness import rehearsals
from harness.commands import secede
from harness.erasure import small
from secede.cli.commands.erase import EraseArguments
from secede.errors import ConfigError
from secede.experiments.rehearsal import runner

SMALL = ("tiny.toml", "--seeds", "1", "--max-rounds", "2")
METHODS = ("--method", "weight-negation", "--method", "second-choice")


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """Return a folder with a rehearsal, and what was printed."""
    folder = tmp_path_factory.mktemp("rehearsed")
    rehearsals.write(folder)
    ended = secede("rehearse", *SMALL, *METHODS, cwd=folder)
    assert ended.returncode == 0, ended.stderr
    return folder, ended.stdout, ended.stderr


def altered(folder: Path, to: Path, **changes: object) -> Path:
    """Return a copy of a rehearsal's file with other values."""
    record = json.loads((folder / "rehearsal.json").read_text())
    path = to / "altered.json"
    path.write_text(json.dumps(record | changes))
    return path


def test_the_rule_comes_first_then_the_table_the_choice_and_its_command(
    rehearsed: tuple[Path, str, str],
) -> None:
    folder, printed, logged = rehearsed
    rule, _, rest = logged.partition("candidates: ")
    assert rule.startswith("Named is, among the methods")
    assert rest.startswith("weight-negation, second-choice\n1 federation; 1 at once\n")
    for words in ("before", "retrained again", "not found", "Null: two retrainings", "Choice: "):
        assert words in printed
    named = json.loads((folder / "rehearsal.json").read_text())["choice"]
    assert named in rehearsals.METHODS
    assert (
        f"Command: secede erase request.json --home home --method {named} --max-rounds 2\n"
        in printed
    )
    assert "--rehearsal rehearsal.json" in printed
    assert max(map(len, printed.partition("Null: ")[0].splitlines())) <= 80


def test_json_is_the_file_and_the_same_command_says_the_same(
    rehearsed: tuple[Path, str, str], tmp_path: Path
) -> None:
    rehearsals.write(tmp_path)
    ended = secede("rehearse", *SMALL, *METHODS, "--json", "--out", "mine.json", cwd=tmp_path)
    found = json.loads(ended.stdout)
    assert found["file"] == "mine.json"
    assert found["command"].startswith("secede erase request.json --home home --method ")
    written = json.loads((tmp_path / "mine.json").read_text())
    assert {**found, "file": None, "command": None} == {**written, "file": None, "command": None}
    before = json.loads((rehearsed[0] / "rehearsal.json").read_text())
    for record in (before, written):
        for row in (*record["reference"].values(), *record["candidates"].values()):
            del row["seconds"]
    assert before == written


def test_without_power_no_method_is_named_and_erase_refuses_the_file(tmp_path: Path) -> None:
    text = rehearsals.CONFIG.replace("rounds = 8", "rounds = 1").replace("0.2 }", "1e-6 }")
    rehearsals.write(tmp_path, text)
    ended = secede("rehearse", *SMALL, *METHODS, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "Choice: no method is named" in ended.stdout
    assert "Command: " not in ended.stdout
    with pytest.raises(ConfigError, match="no method is named"):
        EraseArguments(rehearsal=tmp_path / "rehearsal.json").options()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nonsense",), "no preset 'nonsense'"),
        (("tiny.toml", "--method", "fine-tune"), "is a baseline"),
        (("tiny.toml", "--client", "site-1"), "needs --home"),
        (("tiny.toml", "--home", "absent"), "is no federation's home"),
    ],
)
def test_mistakes_are_one_line_and_an_exit_code(
    arguments: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    rehearsals.write(tmp_path)
    ended = secede("rehearse", *arguments, cwd=tmp_path)
    assert ended.returncode == 2, ended.stderr
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr


def test_an_interrupted_rehearsal_says_that_it_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runner, "erase", interrupted)
    monkeypatch.setattr("secede.cli.commands.audit.progress.signal.signal", lambda *_: None)
    rehearsals.write(tmp_path)
    ended = secede("rehearse", *SMALL, *METHODS, cwd=tmp_path)
    assert ended.returncode == 130
    assert "the same command begins anew" in ended.stderr
    assert not (tmp_path / "rehearsal.json").exists()


def test_erase_takes_the_method_its_rounds_and_its_settings(
    rehearsed: tuple[Path, str, str], tmp_path: Path
) -> None:
    named = {"choice": "second-choice", "settings": {"epochs": 2, "labels": "all"}}
    path = altered(rehearsed[0], tmp_path, **named)
    options = EraseArguments(rehearsal=path).options()
    assert (options.methods, options.max_rounds) == (("second-choice",), 2)
    assert options.settings == {"second-choice": {"epochs": 2, "labels": "all"}}
    given = EraseArguments(rehearsal=path, max_rounds=4, set_=["second-choice.epochs=3"]).options()
    assert given.max_rounds == 4
    assert given.settings == {"second-choice": {"epochs": 3, "labels": "all"}}


def test_erase_retrains_where_retraining_was_named(
    rehearsed: tuple[Path, str, str], tmp_path: Path
) -> None:
    path = altered(rehearsed[0], tmp_path, choice="retrain")
    options = EraseArguments(rehearsal=path).options()
    assert (options.methods, options.from_rung) == ((), "retraining")


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"method": ["second-choice"]}, "--rehearsal and --method"),
        ({"retrain": True}, "--rehearsal and --retrain"),
        ({"from_rung": "server-side"}, "--rehearsal and --from-rung"),
    ],
)
def test_a_rehearsal_and_another_choice_are_refused(
    other: dict[str, object], words: str, rehearsed: tuple[Path, str, str]
) -> None:
    with pytest.raises(ConfigError, match=f"{words}: give one of the two"):
        EraseArguments(rehearsal=rehearsed[0] / "rehearsal.json", **other).options()  # type: ignore[arg-type]


def test_a_home_is_rehearsed_and_erased_from_by_the_file(
    rehearsed: tuple[Path, str, str], tmp_path: Path
) -> None:
    home = small.make(tmp_path).path
    twin = tmp_path / "twin"
    twin.mkdir()
    rehearsals.write(twin, rehearsals.CONFIG.replace("count = 20", "count = 7"))
    ended = secede(
        "rehearse", *SMALL, *METHODS, "--home", str(home), "--client", "site-2", cwd=twin
    )
    assert ended.returncode == 0, ended.stderr
    found = json.loads((twin / "rehearsal.json").read_text())
    assert (found["home"]["leaver"], found["clients"]) == ("site-2", 4)
    named = altered(twin, tmp_path, choice="second-choice")  # whatever so few canaries say
    request = ("request", "site-2", "--home", "home", "--trigger", "objection")
    ended = secede(*request, "--key", "home/sites/site-2.key", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    shutil.copy(rehearsed[0] / "rehearsal.json", tmp_path / "of-three.json")
    erase = ("erase", "request.json", "--home", str(home), "--dry-run")
    refused = secede(*erase, "--rehearsal", "of-three.json", cwd=tmp_path)
    assert refused.returncode == 2
    assert "was of 3 clients" in refused.stderr
    planned = secede(*erase, "--json", "--rehearsal", str(named), cwd=tmp_path)
    assert planned.returncode == 0, planned.stderr
    first = json.loads(planned.stdout)["ladder"][0]
    assert (first["method"], first["max_rounds"]) == ("second-choice", 2)
