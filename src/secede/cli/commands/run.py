"""`secede run`, `demo`, `reproduce` and `report`: experiments with progress, and their pages."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from secede.cli.progress import drawing, progress
from secede.cli.shared import (
    Device,
    Executor,
    Jobs,
    Json,
    Limit,
    Methods,
    Out,
    Precision,
    Rounds,
    Seeds,
    print_json,
)
from secede.errors import ConfigError, StoppedError
from secede.experiments import Config, override, presets
from secede.text import printable

if TYPE_CHECKING:
    from secede.reports.analysis import Verdict
    from secede.reports.build import Report
    from secede.reports.records.runs import Run

FEW = 3  # runs whose tables a terminal shows one after another


def demo(
    seeds: Seeds = 1, device: Device = None, out: Out = Path("runs"), json: Json = False
) -> None:
    """Train, erase and compare with retraining; no network needed.

    Five clients train on 8,000 digits. One of them planted a backdoor and leaves. The demo erases
    it, retrains without it for comparison, and writes an HTML page. It takes about a minute on two
    idle cores.

    Example: secede demo
    """
    config = override(presets.load("demo"), {"device": device})
    _run_and_report([config], seeds, out, as_json=json)


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
    jobs: Jobs = None,
    out: Out = Path("runs"),
    json: Json = False,
) -> None:
    """Run one experiment: a preset or your own TOML file.

    A run that was interrupted or killed continues where it stopped. A finished run is found and
    not computed again. Records, figures and the HTML page are in the run's folder below --out.

    Example: secede run paper/mnist-backdoor-5 --seeds 3

    Another: secede run demo --method second-choice --method weight-negation
    """
    changes = _changes(method, rounds, device, executor, precision, limit)
    config = override(presets.load(experiment, methods_overridden=bool(method)), changes)
    _run_and_report([config], seeds, out, search=search_folder(experiment), jobs=jobs, as_json=json)


def reproduce(
    cells: Annotated[
        list[str] | None,
        typer.Option(
            "--cells",
            help="A cell of the paper, such as mnist-backdoor-5. Repeatable.",
            show_default="all cells",
        ),
    ] = None,
    suite: Annotated[
        str,
        typer.Option(
            help="paper: its own method. compare: ours and others. controls: our hold on others' "
            "steps. ablation: ours without one of its parts. history: methods that keep updates, "
            "or cost like retraining. natural: other leavers, ours and others. regimes: methods of "
            "others with their published settings. Suites joined by +, as in compare+controls, "
            "train each cell once; the verdict is about the first method of the first suite."
        ),
    ] = "paper",
    method: Methods = None,
    seeds: Seeds = 5,
    rounds: Rounds = None,
    device: Device = None,
    executor: Executor = None,
    precision: Precision = None,
    limit: Limit = None,
    jobs: Jobs = None,
    out: Out = Path("runs"),
    report: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("report"),
    json: Json = False,
) -> None:
    """Run the whole paper and draw its figures.

    The report puts the numbers of the paper's text beside the measured ones. MNIST, EMNIST (47
    classes) and CIFAR-10 are needed: see `secede datasets`. It takes hours on two CPU cores,
    minutes on a GPU, and continues where it was stopped.

    Example: secede reproduce --cells mnist-backdoor-5 --cells mnist-flipped-10 --seeds 3

    Another: secede reproduce --suite compare --device cuda --precision tf32
    """
    changes = _changes(method, rounds, device, executor, precision, limit)
    configs = [override(presets.load(name), changes) for name in _cell_names(cells, suite)]
    _run_and_report(configs, seeds, out, report=report, jobs=jobs, as_json=json, is_the_papers=True)


def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders of them.")],
    out: Annotated[Path, typer.Option(help="Folder for page, figures and tables.")] = Path(
        "report"
    ),
    json: Json = False,
) -> None:
    """Turn records into an HTML page, figures and tables.

    The page is one file that needs no network. Figures are SVG and PNG, tables CSV.

    Example: secede report runs/ --out report
    """
    _report(runs, out, as_json=json)


def search_folder(experiment: str) -> Path:
    """Return where an experiment's own model and methods are searched."""
    return Path(experiment).resolve().parent if experiment.endswith(".toml") else Path.cwd()


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


def _cell_names(cells: Sequence[str] | None, suite: str) -> tuple[str, ...]:
    """Return the presets of some of a suite's cells, or of all."""
    allowed = presets.cells(suite)
    names = tuple(cell.removeprefix(f"{suite}/") for cell in cells or allowed)
    unknown = [name for name in names if name not in allowed]
    if unknown:
        raise ConfigError(f"no cell {unknown[0]!r}; the cells are: {', '.join(allowed)}")
    return tuple(f"{suite}/{name}" for name in names)


def _run_and_report(
    configs: Sequence[Config],
    seeds: int,
    runs: Path,
    *,
    report: Path | None = None,
    search: Path | None = None,
    jobs: int | None = None,
    as_json: bool,
    is_the_papers: bool = False,
) -> None:
    """Run experiments, several seeds at once, and write a report, by default beside the run."""
    from secede.experiments import run as run_seeds

    try:
        with progress() as reporter:
            folders = run_seeds(configs, range(seeds), runs, reporter, search=search, lanes=jobs)
    except KeyboardInterrupt:
        # A second Ctrl-C would only cut short the threads that finish their round.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise StoppedError("interrupted; the same command continues from here") from None
    out = report or folders[0] / "report"
    _report(folders, out, as_json=as_json, is_the_papers=is_the_papers)


def _report(runs: Sequence[Path], out: Path, *, as_json: bool, is_the_papers: bool = False) -> None:
    """Write a report, with figures at the paper's moments or the judged one; print its verdicts."""
    from secede.reports.analysis import joint_headline
    from secede.reports.build import write_report
    from secede.reports.figures.catalogue import JUDGED, PAPER

    moments, processes = PAPER if is_the_papers else JUDGED, os.cpu_count() or 1
    with drawing() as drawn:
        report = write_report(runs, out, progress=drawn, processes=processes, moments=moments)
    if as_json:
        print_json(_as_json(report))
        return
    console = Console(markup=False, emoji=False)  # titles are whatever a record says
    if len(report.verdicts) > FEW:
        console.print(_overview(report.verdicts))
        methods = [run.erased for run, _ in report.verdicts]
        headline = joint_headline([verdict for _, verdict in report.verdicts], methods)
        console.print(f"{headline} Each run's table is on the page.\n")
    else:
        for run, verdict in report.verdicts:
            console.print(_table(run))
            console.print(verdict.text + "\n", highlight=False)
    for name in report.unfinished:
        console.print(f"not finished, left out: {printable(name)}")
    console.print(f"Report: {report.page.resolve()}", soft_wrap=True, highlight=False)


def _overview(verdicts: Sequence[tuple[Run, Verdict]]) -> Table:
    """Return the answers on many runs, a line each."""
    from secede.reports import names

    drawn = Table(title="The first method, judged", title_justify="left", box=box.SIMPLE_HEAD)
    for heading in ("", "method", "rounds", "forgotten", "useful", "cheaper"):
        drawn.add_column(heading, overflow="fold")
    for run, verdict in verdicts:
        replies = (str(answer.reply) for answer in verdict.answers)
        title = run.config.title or run.config.name
        drawn.add_row(title, names.label(run.erased), str(verdict.round), *replies)
    return drawn


def _table(run: Run) -> Table:
    """Return what fits 80 columns; the page and the CSV files hold the rest."""
    from secede.reports import names
    from secede.reports.analysis import format_brief
    from secede.reports.tables.scores import score_table

    table = score_table(run)
    headings = {key: key.split("_")[0] for key in (run.config.utility, run.config.main_probe)} | {
        "rounds": "rounds",
        "upload_mb": "uploads",
    }
    shown = [index for index, column in enumerate(table.columns) if column.key in headings]
    title = f"{run.config.title or run.config.name} (erased: {names.method_words(run.erased)})"
    drawn = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    drawn.add_column("", overflow="fold")  # where room is short, between words
    for index in shown:
        drawn.add_column(headings[table.columns[index].key], justify="right", no_wrap=True)
    for row in table.rows:
        cells = list(table.cells(row))
        label = row.label.replace("before post-training", "0 rounds")
        drawn.add_row(label, *(format_brief(*cells[index]) for index in shown))
    return drawn


def _as_json(report: Report) -> dict[str, object]:
    from secede.reports.tables.scores import score_table

    return {
        "page": str(report.page),
        "unfinished": list(report.unfinished),
        "runs": [
            {
                "name": run.config.name,
                "folder": str(run.folder),
                "seeds": len(run.seeds),
                "verdict": {answer.question: answer.reply for answer in verdict.answers},
                "models": {
                    row.label: {
                        column.key: None if value is None else value.mean
                        for column, value in zip(table.columns, row.values, strict=True)
                    }
                    for row in table.rows
                },
            }
            for run, verdict in report.verdicts
            for table in (score_table(run),)
        ],
    }
