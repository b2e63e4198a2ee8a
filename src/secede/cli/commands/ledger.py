"""`secede ledger`, and `secede lineage`: which models there are, and which carry a client."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from secede.cli.shared import Json, print_json
from secede.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from secede.erasure import Head, Model

group = typer.Typer(
    suggest_commands=False,  # click does it too
    name="ledger",
    help="Verify or export the ledger of erasures.",
    no_args_is_help=True,
)


@group.command()
def verify(
    ledger: Annotated[
        Path, typer.Argument(help="Home folder, ledger file, or its export in JSON lines.")
    ],
    expected: Annotated[
        str | None,
        typer.Option(metavar="NUMBER:HASH", help="Require this row, as a receipt names it."),
    ] = None,
    json: Json = False,
) -> None:
    """Find any altered, removed or reordered row.

    In a home, the rows that its journal and receipts name must be there, so that rows cut off at
    the end are found too; and journal, model registry and receipts must agree with the ledger. For
    a file alone, give a row of a receipt as --expected.

    Example: secede ledger verify home
    """
    from secede.erasure import verify_ledger

    file, heads, invalid = _heads(ledger)
    required = [] if expected is None else [_parse_head(expected)]
    head = verify_ledger(file, *heads, *required)
    consistent = _is_consistent(file)
    if json:
        row = {"valid": True, **head.model_dump(), "heads_compared": len(heads) + len(required)}
        print_json({**row, "invalid_receipts": [str(path) for path in invalid]})
        return
    print(f"{file}: valid, {head.number:,} rows")
    print(f"head {head.number}:{head.hash}")
    if heads:
        print(f"It has the {len(heads)} rows that journal and receipts name.")
    elif expected is None:
        print("Rows cut off at the end were not looked for: give a home folder, or --expected.")
    if consistent:
        print("Journal, model registry and receipts agree with it.")
    for path in invalid:
        print(f"{path}: not valid, and not compared")


@group.command()
def export(
    ledger: Annotated[Path, typer.Argument(help="Home folder, or ledger file.")],
    out: Annotated[Path, typer.Argument(help="File of JSON lines to write.")],
    json: Json = False,
) -> None:
    """Write the ledger as JSON lines, to hand it on.

    It is verified on the way. Whoever has the file can verify it too, without SQLite.

    Example: secede ledger export home ledger.jsonl
    """
    from secede.erasure import export_ledger, rows_of_export

    file, heads, _ = _heads(ledger)
    if out.exists():
        raise ConfigError(f"{out} exists and is not replaced: name another file")
    head = export_ledger(rows_of_export(file), out, *heads)
    if json:
        print_json({"file": str(out), **head.model_dump()})
        return
    print(f"{out}: {head.number:,} rows")
    print(f"head {head.number}:{head.hash}")


def lineage(
    home: Annotated[Path, typer.Argument(help="Home folder, or the file of its model registry.")],
    client: Annotated[
        str | None, typer.Option(help="List only the models in use that carry this client.")
    ] = None,
    json: Json = False,
) -> None:
    """List all models, or those that carry a client.

    Example: secede lineage home --client site-3
    """
    from secede.erasure import Home, ModelRegistry

    path = Home(home).registry if home.is_dir() else home
    log, models = home / "rounds.jsonl", tuple["Model", ...]()
    erased, clients = tuple[str, ...](), frozenset[str]()
    if path.exists() or not log.is_file():  # before the first erasure on Flower there is none
        with ModelRegistry(path, read_only=True) as registry:
            models, erased, clients = (
                registry.models(),
                registry.erased_clients(),
                registry.clients(),
            )
    if log.is_file():
        models += _unregistered(log, {model.digest for model in models})
        clients = clients.union(*(model.clients for model in models))
    if client is not None:
        models = tuple(m for m in models if client in m.clients and m.status != "retired")
    if client is not None and client not in clients:
        raise ConfigError(
            f"no model ever carried {client!r}: {did_you_mean(client, clients)}"
            f"expected one of {', '.join(sorted(clients)[:20])}"
        )
    if json:
        rows = [{**vars(model), "clients": list(model.clients)} for model in models]
        print_json({"models": rows, "erased_clients": list(erased)})
        return
    if client is not None:
        print(_summary(client, models, erased=client in erased))
    for model in models:
        Console().print(_lines(model))
    if not models and client is None:
        print("no models yet")


def _heads(path: Path) -> tuple[Path, list[Head], list[Path]]:
    """Return a ledger's file, the heads that its home names, and receipts that are not valid."""
    from secede.erasure import Home, Journal, receipt_heads

    folder = path if path.is_dir() else path.parent
    file, journal = (folder / "ledger.sqlite" if path.is_dir() else path), folder / "journal.sqlite"
    if path.is_dir() and not journal.is_file():
        if (path / "federation.json").is_file():
            Home(path).check_journal()
        raise ConfigError(f"{path} is no federation's home: give one, or a ledger's file")
    if not journal.is_file() or file.name != "ledger.sqlite":
        return file, [], []
    with Journal(journal, read_only=True) as opened:
        last = opened.ledger_head()
    heads, invalid = receipt_heads(Home(folder))
    return file, [head for head in (last, *heads) if head is not None], invalid


def _is_consistent(file: Path) -> bool:
    """Raise if a ledger contradicts the rest of its home; False if it is in none."""
    from secede.erasure import Home, Journal, Ledger, ModelRegistry, check_home

    home = Home(file.parent)
    if file != home.ledger or not (home.path / "federation.json").is_file():
        return False
    home.check_journal()
    with (
        Journal(home.journal, read_only=True) as journal,
        Ledger(file, read_only=True) as ledger,
        ModelRegistry(home.registry, read_only=True) as registry,
    ):
        check_home(home, journal, ledger, registry)
    return True


def _parse_head(text: str) -> Head:
    from secede.erasure import Head

    if not re.fullmatch(r"[0-9]{1,15}:[0-9a-f]{64}", text):
        raise ConfigError(
            f"expected row {text[:80]!r} cannot be used: give NUMBER:HASH, as a receipt or an "
            "earlier `secede ledger verify` names it"
        )
    number, _, digest = text.partition(":")
    return Head(number=int(number), hash=digest)


def _unregistered(log: Path, registered: Collection[str]) -> tuple[Model, ...]:
    """Return the model of the last recorded round, if only the next erasure will register it."""
    from secede.erasure import Model
    from secede.flower.storage import RoundLog

    rounds = RoundLog(log)
    last = rounds.last()
    if last is None or last.model in registered:
        return ()
    status: Any = "unregistered"  # of no model in the registry
    return (
        Model(
            digest=last.model,
            parent=last.start,
            run=last.run,
            round=last.number,
            status=status,
            added=last.at,
            changed=last.at,
            clients=tuple(sorted(rounds.contributors()[last.model])),
        ),
    )


def _summary(client: str, models: tuple[Model, ...], *, erased: bool) -> str:
    """Return how many models carry a client, and whether it was erased."""
    past = "was erased" if erased else "was not erased"
    if not models:
        return f"No model in use carries {client!r}; it {past}."
    serving = sum(model.status == "serving" for model in models)
    if len(models) == 1:
        rest = "and it serves" if serving else "and it does not serve"
        return f"1 model still carries {client!r}, {rest}; {client!r} {past}."
    rest = f"{serving} of them {'serves' if serving == 1 else 'serve'}"
    return f"{len(models)} models still carry {client!r}, {rest}; {client!r} {past}."


def _lines(model: Model) -> Text:
    """Return a model in three lines: digests and dates stay in one piece at any width."""
    parent = f"from {model.parent[:12]}" if model.parent else "from scratch"
    return Text(  # no markup: names such as :no: are no emoji
        f"{model.digest[:12]}  {model.status} since {model.changed[:10]}\n"
        f"  {parent}, run {model.run}, round {model.round}\n"
        f"  carries {', '.join(model.clients) or 'nobody'}"
    )
