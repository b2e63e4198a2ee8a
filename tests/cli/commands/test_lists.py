from __future__ import annotations

import json
import re

import pytest
from typer.testing import CliRunner

from secede.cli.app import app
from secede.unlearning.registry import METHODS


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
    compared = "to compare with only: gradient-ascent, reference, noisy-rewind, fine-tune."
    assert lines[-1].rstrip() == compared
    assert len(table) <= 2 * len(METHODS)  # a second line where a source is long


def test_a_methods_settings_come_as_a_table_and_as_json() -> None:
    runner = CliRunner()
    whole = json.loads(runner.invoke(app, ["methods", "second-choice", "--json"]).stdout)
    assert (whole["needs"], whole["runs_at"], whole["erases"]) == (
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
