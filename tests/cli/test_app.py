from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import typer
from typer.testing import CliRunner

from harness.commands import secede
from harness.paths import ROOT
from secede.cli.app import EXIT_CODES, app

COMMANDS = (
    "demo",
    "run",
    "reproduce",
    "report",
    "audit",
    "methods",
    "datasets",
    "scenarios",
    "executors",
    "presets",
    "keygen",
    "request",
    "rehearse",
    "erase",
    "verify",
    "countersign",
    "lineage",
)
GROUPED = (
    "federation init",
    "ledger verify",
    "ledger export",
    "client release",
    "client revoke",
    "client log",
    "requests list",
    "requests extend",
    "requests quota",
    "requests close",
    "commitment verify",
    "commitment prove",
    "commitment verify-proof",
    "canaries power",
    "canaries read",
    "canaries export",
    "canaries keygen",
)


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


def test_the_list_of_commands_is_whole_and_no_sentence_is_cut() -> None:
    shown = CliRunner().invoke(app, ["-h"], env={"COLUMNS": "80"}).stdout
    table = shown.partition("Experiments:")[2].partition("Exit codes")[0]
    listed = re.findall(r"^  ([a-z]+)  ", table, re.M)
    groups = {name.partition(" ")[0] for name in GROUPED}
    assert sorted(listed) == sorted({*COMMANDS, *groups, "flower"})
    assert "..." not in table
    assert shown == CliRunner().invoke(app, ["--help"], env={"COLUMNS": "80"}).stdout


def commands(command: click.Command, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Give every command below a group, with the words that call it."""
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from commands(inner, *path, name)
    else:
        yield path, command


def test_every_argument_and_option_has_a_help_text() -> None:
    for path, command in commands(typer.main.get_command(app)):
        shown = CliRunner().invoke(app, [*path, "-h"]).stdout
        for parameter in command.params:
            name = parameter.make_metavar(click.Context(command)).strip("[].")
            if isinstance(parameter, click.Option):
                assert parameter.help, (path, parameter.name)
            else:
                assert re.search(rf"^  \[?{re.escape(name)}\S* +[A-Z]", shown, re.M), (path, name)


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


def test_every_option_is_documented() -> None:
    page = (ROOT / "docs" / "commands.md").read_text()
    assert "`--json` prints results" in page  # of every command, so it is said once
    sections = dict(re.findall(r"^## secede (\w+)\n(.*?)(?=^## |\Z)", page, re.S | re.M))
    for path, command in commands(typer.main.get_command(app)):
        section = sections[path[0]] + sections["erase"] * (path == ("flower", "erase"))
        documented = re.findall(r"--[a-z-]+", section)
        for option in command.params:
            if isinstance(option, click.Option) and option.opts[0] not in ("--help", "--json"):
                assert option.opts[0] in documented, (path, option.opts[0])
    for name in ("--verbose", "--log-file", "--version"):
        assert f"`{name}" in page


def test_every_exit_code_is_documented() -> None:
    from secede import errors

    kinds = [k for k in vars(errors).values() if isinstance(k, type)]
    codes = {kind.exit_code for kind in kinds if issubclass(kind, errors.SecedeError)}
    documented = {int(code) for code in re.findall(r"(\d+) [a-z]", EXIT_CODES)}
    assert codes <= documented
    table = (ROOT / "docs" / "commands.md").read_text()
    for code in codes:
        assert f"| {code} |" in table


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
            "no suite 'all'; expected one of: paper, compare, controls, ablation, history, "
            "regimes, natural",
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


@pytest.mark.parametrize("words", [["runn"], ["flower", "upp"]])
def test_a_mistyped_command_gets_one_suggestion(words: list[str]) -> None:
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 2
    assert shown.stderr.count("Did you mean") == 1
