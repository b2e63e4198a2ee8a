"""One command for the tables of threats.md and evidence.md; what it measures is stubbed here."""

from __future__ import annotations

import importlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.threats import __main__ as command

TABLE = "| threat | value |\n|---|---|\n| NaN | 1% |\n| lazy | 2% |\n| lazy | 3% |\n"


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tables that were measured, by a stub; the third of them fails once."""
    names = list[str]()

    def run(name: str) -> Iterator[str]:
        names.append(name)
        yield from TABLE.splitlines(keepends=True)
        if names.count(name) == 1 and len(names) == 3:
            raise subprocess.CalledProcessError(2, name)

    monkeypatch.setattr(command, "run", run)
    return names


def test_it_measures_each_table_once_and_goes_on_where_it_ended(
    tmp_path: Path, measured: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    everything, out = list(command.TABLES), ["--out", str(tmp_path)]
    assert command.main(out) == 1
    assert measured == everything
    broken = everything[2]
    assert {path.stem for path in tmp_path.glob("*.md")} == {*everything} - {broken}
    assert f"{broken}: ended with 2" in capsys.readouterr().err
    assert command.main(out) == 0
    assert measured == [*everything, broken]
    assert (tmp_path / f"{broken}.md").read_text() == TABLE
    assert command.main([*out, "--force", "--only", "attacks"]) == 0
    assert measured[-1] == "attacks"
    assert "finished before" in capsys.readouterr().err


def test_it_lists_tables_with_their_time(
    tmp_path: Path, measured: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["--list", "--out", str(tmp_path)]) == 0
    assert "a quarter of an hour or more on two free cores" in capsys.readouterr().out
    command.main(["--only", "attacks", "--out", str(tmp_path)])
    capsys.readouterr()
    command.main(["--list", "--out", str(tmp_path), "--only", "attacks"])
    assert "0 s when it was last measured" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("documented", "code", "told"),
    [
        (TABLE, 0, "attacks, 'threat': as documented"),
        (TABLE.replace("3%", "4%"), 1, "measured lazy | 3%; documented lazy | 4%"),
        (TABLE.replace("| NaN | 1% |\n", ""), 1, "measured NaN | 1%; documented nothing"),
        ("no table\n", 1, "no page has a table of these columns"),
    ],
)
def test_it_says_where_the_document_differs(
    tmp_path: Path,
    measured: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    documented: str,
    code: int,
    told: str,
) -> None:
    (tmp_path / "threats.md").write_text("| other |\n|---|\n| x |\n\n" + documented)
    monkeypatch.setattr(command, "DOCUMENT", tmp_path / "threats.md")
    options = ["--out", str(tmp_path / "runs"), "--only", "attacks"]
    assert command.main([*options, "--check"]) == 0
    assert "attacks: not measured yet" in capsys.readouterr().out
    command.main(options)
    assert command.main([*options, "--check"]) == code
    assert told in capsys.readouterr().out


@pytest.mark.parametrize("name", command.TABLES)
def test_each_table_is_a_module_that_gives_its_markdown(name: str) -> None:
    assert callable(importlib.import_module(f"benchmarks.threats.{name}").markdown)
    assert (Path(command.__file__).parent / f"{name}.py").exists()


def test_no_table_is_left_out() -> None:
    folder = Path(command.__file__).parent
    modules = {path.stem for path in folder.glob("[a-z]*.py")}
    assert modules - {"lab", "canary_lab"} == set(command.TABLES)
