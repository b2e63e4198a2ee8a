"""`secede ledger verify` and `secede ledger export`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from secede.cli.shared import Json, print_json
from secede.errors import ConfigError

if TYPE_CHECKING:
    from secede.erasure import Head

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
