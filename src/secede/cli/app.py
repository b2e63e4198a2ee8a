"""All commands and their options; each calls the library and prints what came back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import core

from secede.cli import asking, erasure, flower, lists
from secede.cli import federation as federations
from secede.cli.options import (
    Device,
    Executor,
    Json,
    Lanes,
    Limit,
    Methods,
    Out,
    Precision,
    Rounds,
    Seeds,
)
from secede.cli.output import show_log_lines
from secede.experiments import presets
from secede.experiments.config import override

EXIT_CODES = """
Exit codes: 0 done; 1 other error; 2 bad config or arguments; 3 data missing or corrupt; 4 model
state corrupt or not finite; 5 run records damaged or in use; 6 disk full or not writable; 7 request
refused; 8 signature, ledger or receipt does not verify; 9 returned state refused; 10 client silent;
11 erasure rolled back, the old model stays; 130 interrupted (run the same command again to go on).
"""

core.HAS_RICH = False  # help is plain here; for rich, typer would put a backslash before every [

app = typer.Typer(
    name="secede",
    help="Erase one client from a trained federated model, and see how close it comes to "
    "retraining.\n\nExamples:\n\n  secede demo\n\n  secede run paper/mnist-backdoor-5 --seeds 3"
    "\n\n  secede run my.toml\n\n  secede report runs/",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _changes(
    method: list[str] | None,
    rounds: int | None,
    device: str | None,
    executor: str | None,
    precision: str | None,
    limit: int | None,
) -> dict[str, int | str | list[str] | None]:
    """Return what the options change in a config, by its keys."""
    return {
        "methods": method,
        "training.rounds": rounds,
        "device": device,
        "executor": executor,
        "precision": precision,
        "limit": limit,
    }


def _version(wanted: bool) -> None:
    if wanted:
        from secede import __version__

        typer.echo(f"secede {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Hold the options that stand before a command."""
    show_log_lines()


@app.command()
def demo(
    seeds: Seeds = 1, device: Device = None, out: Out = Path("runs"), json: Json = False
) -> None:
    """Train, erase, compare with retraining; embedded data.

    It takes about ninety seconds on two idle cores and needs no network. Five clients train on
    8,000 digits; one of them planted a backdoor and leaves. The demo erases it, retrains without it
    for comparison, and writes an HTML page.

    Example: secede demo
    """
    from secede.cli.experiment import run_one

    run_one(override(presets.load("demo"), {"device": device}), seeds, out, as_json=json)


@app.command()
def run(
    experiment: Annotated[
        str, typer.Argument(metavar="PRESET|FILE.toml", help="See `secede presets`.")
    ],
    method: Methods = None,
    seeds: Seeds = 1,
    rounds: Rounds = None,
    device: Device = None,
    executor: Executor = None,
    precision: Precision = None,
    limit: Limit = None,
    lanes: Lanes = None,
    out: Out = Path("runs"),
    json: Json = False,
) -> None:
    """Run one experiment: a preset or your own TOML file.

    A run that was killed goes on where it was; one that is finished is recognised and not computed
    again. Records, figures and the HTML page lie in the run's folder below --out.

    Example: secede run paper/mnist-backdoor-5 --seeds 3

    Another: secede run demo --method second-choice --method weight-negation
    """
    from secede.cli.experiment import run_one

    changes = _changes(method, rounds, device, executor, precision, limit)
    search = Path(experiment).resolve().parent if experiment.endswith(".toml") else Path.cwd()
    config = override(presets.load(experiment, methods_overridden=bool(method)), changes)
    run_one(config, seeds, out, search=search, lanes=lanes, as_json=json)


@app.command()
def reproduce(
    cells: Annotated[
        list[str] | None,
        typer.Option(
            "--cells", help="Cells of the paper, such as mnist-backdoor-5; all if absent."
        ),
    ] = None,
    suite: Annotated[
        str,
        typer.Option(
            help="paper: its own method. compare: ours and others. controls: our hold on others' "
            "steps. ablation: ours without one of its parts. history: those that keep updates, or "
            "cost like retraining. natural: other leavers, ours and others. Joined by +, as in "
            "compare+controls, they train each cell once; the first one's first method is judged."
        ),
    ] = "paper",
    method: Methods = None,
    seeds: Seeds = 5,
    rounds: Rounds = None,
    device: Device = None,
    executor: Executor = None,
    precision: Precision = None,
    limit: Limit = None,
    lanes: Lanes = None,
    out: Out = Path("runs"),
    report: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("report"),
    json: Json = False,
) -> None:
    """Run the whole paper and draw its figures.

    The report puts the numbers that the paper's text states beside the measured ones.
    Needs MNIST, EMNIST (47 classes) and CIFAR-10: see `secede datasets`. Hours on two CPU cores,
    minutes on a GPU; it can be stopped and started again.

    Example: secede reproduce --cells mnist-backdoor-5 --cells mnist-flipped-10 --seeds 3

    Another: secede reproduce --suite compare --device cuda --precision tf32
    """
    from secede.cli.experiment import run_many

    changes = _changes(method, rounds, device, executor, precision, limit)
    run_many(
        lists.paper_cells(cells, suite), changes, seeds, out, report, lanes=lanes, as_json=json
    )


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders of them.")],
    out: Annotated[Path, typer.Option(help="Folder for page, figures and tables.")] = Path(
        "report"
    ),
    json: Json = False,
) -> None:
    """Turn records into an HTML page, figures and tables.

    The page is self-contained; figures are SVG and PNG, tables CSV.

    Example: secede report runs/ --out report
    """
    from secede.cli.experiment import write_pages

    write_pages(runs, out, as_json=json)


@app.command()
def methods(
    method: Annotated[
        str | None, typer.Argument(help="A method to describe, with its settings, instead.")
    ] = None,
    json: Json = False,
) -> None:
    """List the unlearning methods and what each needs; or what one does, and its settings.

    Example: secede methods

    Another: secede methods second-choice
    """
    if method is None:
        lists.methods(as_json=json)
    else:
        lists.settings(method, as_json=json)


@app.command()
def datasets(json: Json = False) -> None:
    """List the data sets, their sizes and where they come from.

    Example: secede datasets
    """
    lists.datasets(as_json=json)


@app.command()
def scenarios(json: Json = False) -> None:
    """List what a leaver's data can be like, and the probes.

    Example: secede scenarios
    """
    lists.scenarios(as_json=json)


@app.command()
def executors(json: Json = False) -> None:
    """List the ways to compute a round's clients.

    `auto` picks one by device, network and number of clients; the records say which.

    Example: secede executors
    """
    lists.executors(as_json=json)


@app.command(name="presets")
def list_presets(json: Json = False) -> None:
    """List the ready experiments for `secede run`.

    Example: secede presets
    """
    lists.presets(as_json=json)


for command in (
    erasure.keygen,
    erasure.request,
    federations.erase,
    erasure.verify,
    federations.countersign,
    erasure.lineage,
):
    app.command()(command)
app.add_typer(asking.group, name="requests")
app.add_typer(asking.commitment_group, name="commitment")
app.add_typer(erasure.ledger_group, name="ledger")
app.add_typer(federations.group, name="federation")
app.add_typer(flower.group, name="flower")
