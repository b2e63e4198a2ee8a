"""`secede rehearse`: candidate methods on a simulated twin, and the one to take."""

from __future__ import annotations

import json as json_text
import logging
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from secede.cli.commands.audit.progress import audit_progress, stopping
from secede.cli.commands.run import search_folder
from secede.cli.shared import Device, Json, Limit, print_json
from secede.experiments import presets

if TYPE_CHECKING:
    from secede.experiments.rehearsal import Rehearsal

logger = logging.getLogger(__name__)


def rehearse(
    experiment: Annotated[
        str,
        typer.Argument(
            metavar="PRESET|FILE.toml", help="Model, data, sizes and rounds of the twin."
        ),
    ],
    home: Annotated[
        Path | None,
        typer.Option(help="Take clients, sizes and rounds from this federation's home folder."),
    ] = None,
    client: Annotated[
        str | None,
        typer.Option(
            help="Client of --home that leaves.", show_default="the one at clients.leaver's place"
        ),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            "--method",
            help="Rehearse this method. Repeatable.",
            show_default="all that erase and can work here",
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of twins: seeds 0, 1, and so on.")] = 3,
    max_rounds: Annotated[
        int, typer.Option(min=1, help="Number of post-training rounds of an erasure.")
    ] = 5,
    device: Device = None,
    limit: Limit = None,
    out: Annotated[Path, typer.Option(help="File to write.")] = Path("rehearsal.json"),
    json: Json = False,
) -> None:
    """Name the method to erase with: try those that can work on a simulated twin.

    The twin has the same model, client sizes and rounds, on data of your own. Its leaver plants
    canaries. Each method erases it; named is the one whose canaries are gone at the least loss.

    Example: secede rehearse my.toml --home home --client site-3

    Another: secede rehearse my.toml --method second-choice --method weight-negation
    """
    from secede.experiments import rehearsal

    config = presets.load(experiment, methods_overridden=True)
    twin = rehearsal.make_twin(
        config,
        {"device": device, "limit": limit},
        methods=method or (),
        max_rounds=max_rounds,
        home=home,
        client=client,
    )
    logger.info(f"{rehearsal.RULE}\ncandidates: {', '.join(twin.config.methods)}")
    with stopping("nothing is kept: the same command begins anew"), audit_progress() as progress:
        measured = rehearsal.rehearse(twin, seeds, progress, search=search_folder(experiment))
    found = rehearsal.describe(twin, seeds, measured, rehearsal.choose(measured))
    rehearsal.save_rehearsal(found, out)
    command = _command(found, home)
    if json:
        print_json({**found.model_dump(mode="json"), "command": command, "file": str(out)})
    else:
        _print(found, command, out)


def _command(found: Rehearsal, home: Path | None) -> str | None:
    """Return the command that erases with the method that was named."""
    if found.choice is None:
        return None
    command = ["secede", "erase", "request.json", "--home", "home" if home is None else str(home)]
    if found.choice == "retrain":
        return shlex.join([*command, "--retrain"])
    command += ["--method", found.choice, "--max-rounds", str(found.max_rounds)]
    for key, value in found.settings.items():
        command += ["--set", f"{found.choice}.{key}={json_text.dumps(value)}"]
    return shlex.join(command)


def _print(found: Rehearsal, command: str | None, out: Path) -> None:
    console = Console(markup=False, emoji=False, highlight=False)
    console.print(_table(found))
    console.print(
        f"Null: two retrainings differ by {100 * found.accuracy_spread:.1f} points of clean "
        f"accuracy and by {found.loss_spread:.2f} of the leaver's loss (mean of "
        f"{found.seeds} seeds). p: of the canaries; loss: of the leaver's samples, in brackets "
        "over that of retraining."
    )
    for name, reason in found.failed.items():
        console.print(f"Not judged: {name}: {reason}")
    console.print(f"Choice: {found.reason}.")
    if command is not None:
        console.print(f"Command: {command}", soft_wrap=True)
        console.print(f"Or: secede erase ... --rehearsal {shlex.quote(str(out))}", soft_wrap=True)


def _table(found: Rehearsal) -> Table:
    """Return a row for each kind of model: candidates stand below what they are compared with."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("model", no_wrap=True)
    for heading in ("p", "trace", "clean", "loss", "MB sent", "s"):
        table.add_column(heading, justify="right", no_wrap=True)
    retrained = found.reference["retrained"]["leaver_loss"]
    for name, row in {**found.reference, **found.candidates}.items():
        table.add_row(name, *_cells(row, retrained))
    return table


_TRACES = {"no trace found": "not found", "trace found": "found", "undetermined": "unknown"}


def _cells(row: dict[str, Any], retrained: float) -> tuple[str, ...]:
    loss = row["leaver_loss"]
    ratio = f" ({loss / retrained:.2f})" if retrained else ""  # to retraining's
    return (
        f"{row['canaries']['p_value']:.1g}",
        _TRACES.get(row.get("verdict", ""), ""),
        f"{100 * row['clean_accuracy']:.1f} %",
        f"{loss:.2f}{ratio}",
        f"{row['upload_bytes'] / 1e6:.2f}",
        f"{row['seconds']:.1f}",
    )
