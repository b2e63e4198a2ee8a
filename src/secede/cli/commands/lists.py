"""`secede methods`, `datasets`, `scenarios`, `executors` and `presets`: what there is."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from secede import scenarios as scenario_table
from secede.cli.shared import Json, print_json
from secede.data import Entry, catalog
from secede.experiments import presets as preset_files
from secede.federation import executors as executor_table
from secede.unlearning import METHODS, describe
from secede.unlearning import Entry as Method


def methods(
    method: Annotated[
        str | None, typer.Argument(help="Describe this method and its settings instead.")
    ] = None,
    json: Json = False,
) -> None:
    """List the unlearning methods and their needs.

    With a name, show what that method does, where it runs, and its settings with their defaults.

    Example: secede methods

    Another: secede methods second-choice
    """
    if method is not None:
        _describe(method, as_json=json)
        return
    if json:
        print_json([_summary(entry) for entry in METHODS.values()])
        return
    rows = [
        {
            "method": entry.name,
            "leaver": entry.needs.leaver_online,
            "history": entry.needs.history,
            "data": entry.needs.server_data,
            "updates": entry.needs.single_updates,
            "follows": entry.source,
        }
        for entry in METHODS.values()
    ]
    compared = [entry.name for entry in METHODS.values() if not entry.erases]
    note = (
        "leaver: online. history: stored while training. data: unlabelled, at the server.\n"
        "updates: single ones, so not under secure aggregation. What a method does, and\n"
        "its settings: secede methods NAME. In the order in which we would try them;\n"
        f"to compare with only: {', '.join(compared)}."
    )
    _show("Methods and what they need", rows, as_json=False, note=note)


def _describe(method: str, *, as_json: bool) -> None:
    """Print what a method does and needs, and its settings with their defaults."""
    entry, settings = describe(method, search=Path.cwd())
    rows = [
        {
            "setting": name,
            "default": _default(value, as_json=as_json),
            "may be": _kind(kind, unset=value is None),
        }
        for name, (kind, value) in settings.items()
    ]
    if as_json:
        print_json({**_summary(entry), "settings": rows})
        return
    needs = ", ".join(entry.needs.words()) or "nothing"
    where = {"everyone": "all clients"}.get(entry.runs_at, f"the {entry.runs_at}")
    print(f"{method}: {entry.summary} ({entry.source}). Runs at {where}; needs {needs}.")
    if entry.scenarios is not None:
        print(f"Made for the scenarios {' and '.join(entry.scenarios)}, which name the classes.")
    if not rows:
        print("It has no settings.")
        return
    _show(f"Settings of {method}", rows, as_json=False)
    key = method if re.fullmatch(r"[a-z0-9-]+", method) else f'"{method}"'
    print(f"In a config: settings.{key}.{rows[0]['setting']} = ...")


def _summary(entry: Method) -> dict[str, object]:
    return {
        "method": entry.name,
        "runs_at": entry.runs_at,
        "needs": list(entry.needs.words()),
        "secure_aggregation": not entry.needs.single_updates,
        "scenarios": "all" if entry.scenarios is None else list(entry.scenarios),
        "erases": entry.erases,
        "summary": f"{entry.summary} ({entry.source})",
    }


def _kind(annotation: str, *, unset: bool) -> str:
    """Return a field's annotation in words; none is left out unless it is the default.

    A config has no word for it: what is to be none is not given.
    """
    if not unset:
        annotation = annotation.removesuffix(" | None")
    text = re.sub(r"Literal\[(.*?)\]", lambda found: found[1].replace(", ", " | "), annotation)
    text = re.sub(r"(?:Sequence|tuple|list)\[(\w+)[^]]*\]", r"list of \1", text)
    words = {"float": "number", "int": "whole number", "bool": "true | false", "None": "none"}
    words |= {"list of str": "list of texts", "list of int": "list of whole numbers"}
    return " or ".join(words.get(part, part) for part in text.split(" | ")).replace(" | ", " or ")


def _default(value: object, *, as_json: bool) -> object:
    if value is dataclasses.MISSING:
        return "must be given"
    if value is None or isinstance(value, bool):
        return value if as_json else {None: "none", True: "true", False: "false"}[value]
    if isinstance(value, list | tuple):
        return list(value) if as_json else str(list(value))
    return value if as_json and isinstance(value, int | float) else str(value)


def datasets(json: Json = False) -> None:
    """List the data sets, their sizes and sources.

    Example: secede datasets
    """
    rows = [
        {
            "data set": entry.name,
            "training": entry.train_count,
            "test": entry.test_count,
            "shape": "×".join(str(side) for side in entry.shape),
            "classes": len(entry.classes),
            "from": _origin(entry),
        }
        for entry in catalog.entries()
    ]
    note = (
        "SECEDE_DATA names a folder that is looked into before anything is downloaded.\n"
        'Your own: data = "file.npz" with x_train, y_train, x_test, y_test.'
    )
    _show("Data sets", rows, as_json=json, note=note)


def scenarios(json: Json = False) -> None:
    """List what a leaver's data can be like.

    Each scenario has its probes: held-out samples that show whether the leaver was forgotten.

    Example: secede scenarios
    """
    rows = [
        {
            "scenario": name,
            "the leaver": entry.description,
            "measured by": ", ".join(entry.measures),
            "settings": ", ".join(entry.settings),
        }
        for name, entry in scenario_table.SCENARIOS.items()
    ]
    _show("Scenarios", rows, as_json=json)


def executors(json: Json = False) -> None:
    """List the ways to compute a round's clients.

    `auto` picks one by device, network and number of clients; the records say which.

    Example: secede executors
    """
    rows = [
        {"executor": name, "a round's clients": summary}
        for name, summary in executor_table.NAMES.items()
    ]
    note = "auto picks by device, network and number of clients; each is tried beside `loop` first."
    _show("Executors", rows, as_json=json, note=note)


def presets(json: Json = False) -> None:
    """List the ready experiments for `secede run`.

    Example: secede presets
    """
    configs = {name: preset_files.load(name) for name in preset_files.NAMES}
    rows = [
        {
            "preset": name,
            "data": config.data,
            "scenario": config.scenario.name,
            "clients": config.clients.count,
            "rounds": config.training.rounds,
        }
        for name, config in configs.items()
    ]
    _show("Presets", rows, as_json=json, note="Run one: secede run NAME")


def _origin(entry: Entry) -> str:
    if entry.needs_folder:
        return "SECEDE_DATA only"
    if entry.needs_network:
        return f"SECEDE_DATA or download, {entry.download_bytes / 1e6:.0f} MB"
    return "in the package"


def _show(
    title: str,
    rows: Sequence[Mapping[str, object]],
    *,
    as_json: bool,
    note: str | None = None,
) -> None:
    """Print `rows`, as JSON or as a table."""
    if as_json:
        print_json([{key.replace(" ", "_"): row[key] for key in row} for row in rows])
        return
    table = Table(
        title=title, title_justify="left", caption=note, caption_justify="left", box=box.SIMPLE
    )
    for number, name in enumerate(rows[0]):
        table.add_column(name, no_wrap=number == 0, overflow="fold")
    for row in rows:
        table.add_row(*(_cell(value) for value in row.values()))
    Console().print(table)


def _cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "–"
    return f"{value:,}" if isinstance(value, int) else str(value)
