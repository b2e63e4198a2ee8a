"""Run experiments with progress, then print table and verdict and name the page."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table

from secede.cli.progress import drawing, progress
from secede.errors import StoppedError
from secede.experiments import presets
from secede.experiments.config import Config, override
from secede.reports import names
from secede.reports.analysis.formats import format_brief
from secede.reports.analysis.verdict import Verdict, joint_headline
from secede.reports.records.load import load_runs
from secede.reports.records.runs import Run
from secede.reports.tables.scores import score_table

if TYPE_CHECKING:
    from secede.reports.build import Report

FEW = 3  # runs whose tables a terminal shows one after another


def run_one(
    config: Config,
    seeds: int,
    runs: Path,
    *,
    search: Path | None = None,
    lanes: int | None = None,
    as_json: bool,
) -> None:
    """Run one experiment and write its report into its own folder."""
    (folder,) = _run([config], seeds, runs, search, lanes)
    write_pages([folder], folder / "report", as_json=as_json)


def run_many(
    cells: Sequence[str],
    changes: Mapping[str, Any],
    seeds: int,
    runs: Path,
    report: Path,
    *,
    lanes: int | None = None,
    as_json: bool,
) -> None:
    """Run several presets, their seeds side by side, and write one report over all of them."""
    configs = [override(presets.load(cell), dict(changes)) for cell in cells]
    folders = _run(configs, seeds, runs, None, lanes)
    write_pages(folders, report, as_json=as_json)


def write_pages(runs: Sequence[Path], out: Path, *, as_json: bool) -> None:
    """Write a report, then print its tables and verdicts, or all of it as JSON."""
    from secede.reports.build import write_report

    with drawing() as drawn:
        report = write_report(runs, out, progress=drawn, processes=os.cpu_count() or 1)
    records = load_runs(runs)
    if as_json:
        print(json.dumps(_as_json(report, records.runs), indent=2))
        return
    console = Console()
    verdicts = [verdict for _, verdict in report.verdicts]
    if len(verdicts) > FEW:
        console.print(_overview(records.runs, verdicts))
        headline = joint_headline(verdicts, [run.erased for run in records.runs])
        console.print(f"{headline} Each run's table is on the page.\n")
    else:
        for run, verdict in zip(records.runs, verdicts, strict=True):
            console.print(_drawn(run))
            console.print(verdict.text + "\n", highlight=False)
    for name in report.unfinished:
        console.print(f"not finished, left out: {name}")
    console.print(f"Report: {report.page.resolve()}", soft_wrap=True, highlight=False)


def _overview(runs: Sequence[Run], verdicts: Sequence[Verdict]) -> Table:
    """Return the answers on many runs, a line each."""
    drawn = Table(title="The first method, judged", title_justify="left", box=box.SIMPLE_HEAD)
    for heading in ("", "method", "rounds", "forgotten", "useful", "cheaper"):
        drawn.add_column(heading, overflow="fold")
    for run, verdict in zip(runs, verdicts, strict=True):
        replies = (str(answer.reply) for answer in verdict.answers)
        title = run.config.title or run.config.name
        drawn.add_row(title, names.label(run.erased), str(verdict.round), *replies)
    return drawn


def _drawn(run: Run) -> Table:
    """Return what fits 80 columns; the page and the CSV files hold the rest."""
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


def _run(
    configs: Sequence[Config], seeds: int, runs: Path, search: Path | None, lanes: int | None
) -> list[Path]:
    from secede.experiments.runner import run

    try:
        with progress() as reporter:
            return run(configs, range(seeds), runs, reporter, search=search, lanes=lanes)
    except KeyboardInterrupt:
        # A second Ctrl-C would only cut short the threads that finish their round.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise StoppedError("interrupted; the same command goes on from here") from None


def _as_json(report: Report, runs: Sequence[Run]) -> dict[str, object]:
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
            for run, (_, verdict) in zip(runs, report.verdicts, strict=True)
            for table in (score_table(run),)
        ],
    }
