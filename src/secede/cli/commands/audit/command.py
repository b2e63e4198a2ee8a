"""`secede audit`: many federations, erased and retrained, and what tells the one from the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from secede.cli.commands.audit.progress import audit_progress, stopping
from secede.cli.commands.run import search_folder
from secede.cli.shared import Device, Json, Limit, Out, Rounds, print_json
from secede.experiments import override, presets

if TYPE_CHECKING:
    from secede.experiments.ensembles import Audit
    from secede.reports.audit import Judged, Subject

_SHOWN = ("AUC", "told from retrained", "KLoM,")  # of the terminal's table


def audit(
    experiment: Annotated[
        str, typer.Argument(metavar="PRESET|FILE.toml", help="See `secede presets`.")
    ],
    models: Annotated[int, typer.Option(min=4, help="Models of each kind to train.")] = 32,
    method: Annotated[
        str | None,
        typer.Option(help="Judge this method.", show_default="the first of the config"),
    ] = None,
    rounds: Rounds = None,
    max_rounds: Annotated[
        int, typer.Option(min=1, help="Maximum number of post-training rounds of an erasure.")
    ] = 3,
    quantised: Annotated[
        bool, typer.Option(help="Judge the models with weights of four bits, too.")
    ] = True,
    train_on: Annotated[
        int,
        typer.Option(
            min=0, help="Judge the models after this many rounds of ordinary training, too."
        ),
    ] = 0,
    relearn: Annotated[
        bool,
        typer.Option(
            "--relearn", help="Count the steps until the leaver's samples are learnt again."
        ),
    ] = False,
    keep_unused_weights: Annotated[
        bool,
        typer.Option(
            "--keep-unused-weights", help="Keep weights that only the leaver's training used."
        ),
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of the whole audit.")] = 0,
    device: Device = None,
    limit: Limit = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1, help="Federations to train at once.", show_default="a CPU's cores, 8 on a GPU"
        ),
    ] = None,
    out: Out = Path("runs"),
    json: Json = False,
) -> None:
    """Judge a method by many models: is an erased one told from a retrained one?

    Each federation trains a model with everybody, erases its leaver end to end, and retrains
    without it twice, from two seeds. Scores stand beside those of the two retrained models, the
    null. Federations that are finished are kept: an audit that was killed continues, and a larger
    --models adds to it. The page is audit.html in the audit's folder below --out.

    Example: secede audit demo --models 8

    Another: secede audit my.toml --method weight-negation --models 64 --train-on 10
    """
    from secede.experiments.ensembles import AuditOptions, run_audit

    changes: dict[str, Any] = {
        "methods": None if method is None else [method],
        "training.rounds": rounds,
        "device": device,
        "limit": limit,
    }
    config = override(presets.load(experiment, methods_overridden=method is not None), changes)
    options = AuditOptions(
        seed=seed,
        max_rounds=max_rounds,
        keep_unused_weights=keep_unused_weights,
        quantised=quantised,
        train_on=train_on,
        relearn=relearn,
    )
    with stopping("the same command continues from here"), audit_progress() as progress:
        found = run_audit(
            config,
            options,
            models,
            out,
            progress,
            search=search_folder(experiment),
            lanes=jobs,
        )
    _report(found, as_json=json)


def _report(found: Audit, *, as_json: bool) -> None:
    """Score the ensembles, write the page and print what came out."""
    from secede.reports.audit import judge, write_audit_page

    judged = [
        judge(variant, ensembles, seed=found.options.seed)
        for variant, ensembles in found.ensembles.items()
    ]
    page = found.folder / "audit.html"
    write_audit_page(_subject(found), judged, page)
    if as_json:
        print_json(_as_json(found, judged, page))
        return
    console = Console(markup=False, emoji=False, highlight=False)
    console.print(_score_table(judged[0]))
    console.print(_mean_table(judged[0]))
    for each in judged:
        _print_verdict(console, each)
    console.print(f"Page: {page.resolve()}", soft_wrap=True)


def _subject(found: Audit) -> Subject:
    from secede.reports.audit import Subject

    member = next(iter(found.ensembles.values())).member
    settings = {
        key: value
        for key, value in found.config.resolved().items()
        if key not in ("name", "title", "methods")
    }
    return Subject(
        title=found.config.title or found.config.name,
        method=found.config.methods[0],
        models=len(member),
        pool=member.shape[1],
        dealt=int(member[0].sum()),
        settings={**settings, **asdict(found.options)},
        environment={**found.environment, "audit digest": found.digest},
        notes=found.notes,
    )


def _score_table(judged: Judged) -> Table:
    """Return the main scores, what fits 80 columns; the page has them all."""
    rows = [row for group in judged.groups for row in group.rows]
    shown = [row for row in rows if any(word in row.label for word in _SHOWN)]
    cells = [(row.label, row.erased, row.null, row.original) for row in shown]
    return _table(("against retrained models", "erased", "null", "before"), cells)


def _mean_table(judged: Judged) -> Table:
    """Return the means of accuracies and losses."""
    cells = [
        (row.label, row.original, row.erased, row.retrained, row.again) for row in judged.means
    ]
    return _table(("mean over models", "before", "erased", "retrained", "again"), cells)


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column(headings[0], overflow="fold")
    for heading in headings[1:]:
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def _print_verdict(console: Console, judged: Judged) -> None:
    verdict = judged.verdict
    if judged.variant != "as erased":
        console.print(f"Judged {judged.title}:")
    console.print(f"Samples: {verdict.samples.answer}; {verdict.samples.reason}.")
    console.print(f"Visibility: {verdict.visibility.answer}; {verdict.visibility.reason}.\n")


def _as_json(found: Audit, judged: list[Judged], page: Path) -> dict[str, object]:
    return {
        "page": str(page),
        "folder": str(found.folder),
        "method": found.config.methods[0],
        "models": judged[0].ensembles.models,
        "federations": found.notes,
        "variants": {
            each.variant: {
                "verdict": asdict(each.verdict),
                "scores": each.scores.to_dict(),
                "means": {
                    name: {kind: float(values.mean()) for kind, values in by.items()}
                    for name, by in each.ensembles.scalars.items()
                },
            }
            for each in judged
        },
    }
