from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import click
import pytest
import typer
from typer.testing import CliRunner

from harness import tiny
from harness.commands import secede
from harness.paths import ROOT
from secede.cli.app import EXIT_CODES, app
from secede.reports import build
from secede.reports.figures.catalogue import plots
from secede.unlearning.registry import METHODS

COMMANDS = (
    "demo",
    "run",
    "reproduce",
    "report",
    "methods",
    "datasets",
    "scenarios",
    "executors",
    "presets",
    "keygen",
    "request",
    "erase",
    "verify",
    "countersign",
    "lineage",
)
GROUPED = (
    "federation init",
    "ledger verify",
    "ledger export",
    "requests list",
    "requests extend",
    "requests quota",
    "requests close",
    "commitment whole",
    "commitment prove",
    "commitment check",
)


@pytest.fixture
def _undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """No figures: what is read is the terminal's part."""
    monkeypatch.setattr(build, "plots", lambda _: [])


def test_help_answers_without_torch_or_matplotlib() -> None:
    program = (
        "import sys\nfrom secede.cli import main\nsys.argv = ['secede', '--help']\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
        "heavy = {'torch', 'matplotlib', 'sklearn', 'scipy', 'numpy'} & set(sys.modules)\n"
        "sys.exit(', '.join(sorted(heavy)) or 0)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    assert "Exit codes" in ended.stdout


@pytest.mark.parametrize("command", [*COMMANDS, *GROUPED])
def test_every_command_has_help_with_an_example(command: str) -> None:
    shown = CliRunner().invoke(app, [*command.split(), "--help"])
    assert shown.exit_code == 0
    assert "Example: secede" in shown.stdout
    assert "\\[" not in shown.stdout


def test_every_command_is_documented() -> None:
    names = {command.name or command.callback.__name__ for command in app.registered_commands}  # type: ignore[union-attr]
    assert names == set(COMMANDS)
    text = (ROOT / "docs" / "commands.md").read_text()
    for name in (*names, "requests", "ledger", "federation"):
        assert f"## secede {name}" in text
    for name in GROUPED:
        assert name in text


def options_of(command: click.Command, path: tuple[str, ...] = ()) -> dict[str, set[str]]:
    """Return the options of every command below, by the first word after `secede`."""
    found: dict[str, set[str]] = {}
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            for first, names in options_of(inner, (*path, name)).items():
                found.setdefault(first, set()).update(names)
        return found
    given = [p for p in command.params if isinstance(p, click.Option)]
    return {path[0]: {p.opts[0] for p in given} - {"--help", "--json"}}


def test_every_option_is_documented() -> None:
    page = (ROOT / "docs" / "commands.md").read_text()
    assert "`--json` prints results" in page  # of every command, so it is said once
    sections = dict(re.findall(r"^## secede (\w+)\n(.*?)(?=^## |\Z)", page, re.S | re.M))
    missing = {
        f"{name} {option}"
        for name, options in options_of(typer.main.get_command(app)).items()
        for option in options
        if f"{option}" not in re.findall(r"--[a-z-]+", sections[name])
    }
    assert missing == set()


def test_every_exit_code_is_documented() -> None:
    from secede import errors

    kinds = [k for k in vars(errors).values() if isinstance(k, type)]
    codes = {kind.exit_code for kind in kinds if issubclass(kind, errors.SecedeError)}
    documented = {int(code) for code in re.findall(r"(\d+) [a-z]", EXIT_CODES)}
    assert codes <= documented
    table = (ROOT / "docs" / "commands.md").read_text()
    for code in codes:
        assert f"| {code} |" in table


@pytest.mark.parametrize("command", ["methods", "datasets", "scenarios", "executors", "presets"])
def test_lists_come_as_a_table_and_as_json(command: str) -> None:
    runner = CliRunner()
    rows = json.loads(runner.invoke(app, [command, "--json"]).stdout)
    table = runner.invoke(app, [command]).stdout
    assert len(rows) >= 3
    for row in rows:
        assert str(next(iter(row.values()))) in table


def test_the_methods_needs_fit_a_narrow_terminal_and_say_what_the_table_of_methods_says() -> None:
    lines = CliRunner().invoke(app, ["methods"], env={"COLUMNS": "80"}).stdout.splitlines()
    assert re.fullmatch(r" +method +leaver +history +data +updates +follows *", lines[2])
    for entry in METHODS.values():
        (line,) = (line for line in lines if line.split()[:1] == [entry.name])
        needs = entry.needs
        told = (needs.leaver_online, needs.history, needs.server_data, needs.single_updates)
        assert line.split()[1:5] == ["yes" if need else "–" for need in told]
    note = next(place for place, line in enumerate(lines) if line.startswith("leaver:"))
    table = [line for line in lines[4:note] if line.strip()]
    assert len(lines[note:]) == 4
    compared = "to compare with only: gradient-ascent, reference, fine-tune."
    assert lines[-1].rstrip() == compared
    assert len(table) <= 2 * len(METHODS)  # a second line where a source is long


def test_a_methods_settings_come_as_a_table_and_as_json() -> None:
    runner = CliRunner()
    whole = json.loads(runner.invoke(app, ["methods", "second-choice", "--json"]).stdout)
    assert (whole["needs"], whole["runs at"], whole["erases"]) == (
        ["the leaver online"],
        "leaver",
        True,
    )
    rows = whole["settings"]
    assert {"setting": "floor", "default": True, "may be": "true or false"} in rows
    assert {"setting": "radius", "default": None, "may be": "number or none"} in rows
    table = runner.invoke(app, ["methods", "second-choice"]).stdout
    assert re.search(r"hold_by +neuron +'model' or 'neuron'", table)
    assert re.search(r"floor +true +true or false", table)
    told = runner.invoke(app, ["methods", "fine-tune"]).stdout
    assert told.endswith(" Runs at the server; needs nothing.\nIt has no settings.\n")
    # What must be given has no default to run with, and can be looked up all the same.
    pruning = runner.invoke(app, ["methods", "class-pruning"])
    assert pruning.exit_code == 0
    assert re.search(r"classes +\[\] +list of whole numbers", pruning.stdout)
    assert "Made for the scenarios class and exclusive, which name the classes." in pruning.stdout
    listed = json.loads(runner.invoke(app, ["methods", "--json"]).stdout)
    scenarios = {row["method"]: row["scenarios"] for row in listed}
    assert scenarios["class-pruning"] == ["class", "exclusive"]
    assert scenarios["second-choice"] == "all"
    assert (
        json.loads(runner.invoke(app, ["methods", "fine-tune", "--json"]).stdout)["settings"] == []
    )


def test_a_report_on_many_runs_is_a_line_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    # All thirty are drawn in tests/reports/test_build.py.
    monkeypatch.setattr(build, "plots", lambda runs: plots(runs)[:1])
    with tarfile.open(ROOT / "docs" / "records" / "natural.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    told = secede("report", "natural", cwd=tmp_path).stdout
    assert (
        "Of 8 runs, erased by second choice, the leaver is forgotten as by retraining in "
        in " ".join(told.split())
    )
    assert len(told.splitlines()) < 40
    assert re.search(r"alone has 8s +Second choice +2 +yes +yes +yes", told)
    three = [path.name for path in sorted((tmp_path / "natural").iterdir())[:3]]
    few = secede("report", *(f"natural/{name}" for name in three), cwd=tmp_path).stdout
    assert few.count("Is the model still useful?") == 3


@pytest.mark.usefixtures("_undrawn")
def test_other_methods_may_be_run_where_the_files_own_cannot(tmp_path: Path) -> None:
    gone = "situation.leaver_online = false\n"
    tiny.write(tmp_path, gone + tiny.CONFIG)
    refused = secede("run", "tiny.toml", cwd=tmp_path)
    assert refused.returncode == 2
    assert "weight-negation" in refused.stderr
    ended = secede("run", "tiny.toml", "--method", "weight-negation", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    again = secede("run", "tiny.toml", "--method", "projected-ascent", cwd=tmp_path)
    assert again.returncode == 2
    assert "needs the leaver online" in again.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["run", "nonsense"], 2, "no preset 'nonsense'"),
        (["run", "absent.toml"], 2, "absent.toml: cannot be read"),
        (["run", "demo", "--device", "tpu"], 2, "device is 'tpu', expected 'auto', 'cpu' or"),
        (["run", "demo", "--rounds", "0"], 2, "--rounds"),
        (["run", "paper/emnist47-flipped-5"], 3, "SECEDE_DATA"),
        (["reproduce", "--cells", "mnist"], 2, "no cell 'mnist'"),
        (
            ["reproduce", "--suite", "all"],
            2,
            "no suite 'all'; expected one of: paper, compare, controls, ablation, history, natural",
        ),
        (["report", "absent"], 5, "absent"),
        (
            ["request", "site-0", "--home", "nohome", "--key", "k", "--trigger", "other"],
            2,
            "nohome is no federation's home",
        ),
        (["request", "site-0", "--home", "nohome", "--key", "k"], 2, "Missing option '--trigger'"),
        (["nonsense"], 2, "No such command"),
    ],
)
def test_mistakes_are_one_line_and_an_exit_code(
    arguments: list[str],
    code: int,
    words: str,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SECEDE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    ended = secede(*arguments, cwd=tmp_path)
    assert ended.returncode == code, ended.stderr
    assert words in ended.stderr
    assert "Traceback" not in ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_five_lines_run_a_users_own_data_and_model_through_everything(tmp_path: Path) -> None:
    tiny.write(tmp_path)
    lines = (
        'data = "tiny.npz"',
        'model = "tiny_model:build"',
        "clients.count = 3",
        'scenario = { name = "backdoor", share = 0.5 }',
        "training = { rounds = 3, learning_rate = 0.1, batch_size = 16 }",
    )
    assert len(lines) == 5
    (tmp_path / "mine.toml").write_text("\n".join(lines))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    ended = secede("run", "../mine.toml", cwd=elsewhere)
    assert ended.returncode == 0, ended.stderr
    assert "Is the leaver forgotten" in ended.stdout
    page = Path(ended.stdout.rpartition("Report: ")[2].strip())
    assert "<html" in page.read_text()
    assert (page.parent / "figures").is_dir()
    again = secede("run", "../mine.toml", "--json", cwd=elsewhere)
    assert "found finished, not computed again" in again.stderr
    found = json.loads(again.stdout)
    assert found["runs"][0]["seeds"] == 1
    assert set(found["runs"][0]["models"]) >= {"FedAvg, 3 rounds", "Retrained, 3 rounds"}


def test_a_missing_data_file_and_a_broken_model_name_what_is_wrong(tmp_path: Path) -> None:
    tiny.write(tmp_path)
    (tmp_path / "a.toml").write_text('data = "absent.npz"')
    ended = secede("run", "a.toml", cwd=tmp_path)
    assert (ended.returncode, "absent.npz: no such file" in ended.stderr) == (3, True)
    (tmp_path / "b.toml").write_text(
        'data = "tiny.npz"\nmodel = "tiny_model:absent"\nscenario.share = 0.3'
    )
    ended = secede("run", "b.toml", cwd=tmp_path)
    assert (ended.returncode, "has no 'absent'" in ended.stderr) == (2, True)
    assert not (tmp_path / "runs").exists()
    (tmp_path / "c.toml").write_text('data = "tiny.npz')
    ended = secede("run", "c.toml", cwd=tmp_path)
    assert (ended.returncode, "c.toml: not valid TOML" in ended.stderr) == (2, True)


def test_a_place_that_cannot_be_written_has_its_exit_code(tmp_path: Path) -> None:
    tiny.write(tmp_path)
    (tmp_path / "file").write_text("in the way")
    ended = secede("run", "tiny.toml", "--out", "file/runs", cwd=tmp_path)
    assert ended.returncode == 6, ended.stderr
    assert "cannot write" in ended.stderr


def test_an_interrupt_says_how_to_go_on(tmp_path: Path) -> None:
    tiny.write(tmp_path, tiny.CONFIG.replace("rounds = 3", "rounds = 100000"))
    process = subprocess.Popen(
        [sys.executable, "-c", "from secede.cli import main; main()", "run", "tiny.toml"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("runs/*/seed-0/curves.jsonl")):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGINT)
    _, text = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted; the same command goes on from here" in text


@pytest.mark.usefixtures("_undrawn")
def test_the_terminal_table_fits_80_columns_uncut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    methods = 'methods = ["second-choice", "projected-ascent"]\n'
    tiny.write(tmp_path, tiny.CONFIG.replace("backdoor", "flipped") + methods)
    ended = secede("run", "tiny.toml", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "…" not in ended.stdout
    assert max(map(len, ended.stdout.splitlines()[:12])) <= 80
    # Folded, and not a word lost.
    assert re.search(r"^  Projected ascent, 2 .*\n  rounds *$", ended.stdout, re.M)
    assert "Erased, 0 rounds" in ended.stdout
    assert "(erased: second choice)" in ended.stdout
    monkeypatch.setenv("COLUMNS", "100")
    assert "  Projected ascent, 2 rounds  " in secede("run", "tiny.toml", cwd=tmp_path).stdout
