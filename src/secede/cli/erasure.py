"""Commands of a real erasure, and of those who check one; `app.py` registers them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from secede.cli.options import Auditors, Json, Trigger
from secede.errors import ConfigError


def keygen(
    name: Annotated[str, typer.Argument(help="Whose keys: a client's name, or `server`.")],
    folder: Annotated[Path, typer.Option(help="Where NAME.key and NAME.pub go.")] = Path("keys"),
    json: Json = False,
) -> None:
    """Make a pair of Ed25519 keys.

    NAME.key is secret and readable by its owner only (0600); NAME.pub is for everybody. Files that
    are there are not replaced.

    Example: secede keygen site-3
    """
    from secede.cli import requests as bodies

    bodies.keygen(name, folder, as_json=json)


def request(
    client: Annotated[str, typer.Argument(help="Who leaves, by its name in the federation.")],
    key: Annotated[Path, typer.Option(help="The client's private key.")],
    trigger: Trigger,
    federation: Annotated[str | None, typer.Option(help="The federation's name.")] = None,
    model: Annotated[
        str | None, typer.Option(help="The model's digest, or its safetensors file.")
    ] = None,
    home: Annotated[
        Path | None, typer.Option(help="A home folder to take both from, instead of those two.")
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=31, help="Days until it expires.")] = 7,
    out: Annotated[Path, typer.Option(help="The file that is sent to the server.")] = Path(
        "request.json"
    ),
    json: Json = False,
) -> None:
    """Sign a request to be erased.

    It names the client, the model and a nonce, and no person. The server accepts it once.

    Example: secede request site-3 --home home --key keys/site-3.key --trigger contract-ended
    """
    from secede.cli import requests as bodies

    name, digest = bodies.addressed(home, federation, model)
    if home is not None:
        bodies.check_known(home, client, key)
    bodies.request(
        federation=name,
        client=client,
        trigger=trigger,
        model=digest,
        key=key,
        out=out,
        now=datetime.now(UTC),
        days=days,
        as_json=json,
    )


def verify(
    receipts: Annotated[list[Path], typer.Argument(help="The receipts' files.")],
    keys: Annotated[Path, typer.Option(help="Folder with the signers' public keys.")] = Path(
        "keys"
    ),
    model: Annotated[
        Path | None, typer.Option(help="Compare the erased model's safetensors file.")
    ] = None,
    ledger: Annotated[Path | None, typer.Option(help="Compare the ledger.")] = None,
    server: Annotated[str, typer.Option(help="The name of the server's key.")] = "server",
    auditor: Auditors = None,
    countersigned_by: Annotated[
        list[str] | None,
        typer.Option("--countersigned-by", help="Who must have signed too; may be repeated."),
    ] = None,
    page: Annotated[bool, typer.Option("--page", help="Write its HTML page beside it.")] = False,
    json: Json = False,
) -> None:
    """Check receipts of erasures, offline.

    Public keys are all it takes. Every altered byte is found. The server must have signed it; only
    the client that left and auditors, whose keys lie in KEYS/auditors, may have signed it too.

    Example: secede verify receipt.json --keys keys --ledger ledger.sqlite
    """
    from secede.cli import trust

    if len(receipts) > 1 and (json or model is not None):
        raise ConfigError("--json and --model are for one receipt at a time")
    for receipt in receipts:
        trust.verify(
            receipt,
            keys,
            model=model,
            ledger=ledger,
            server=server,
            auditors=auditor or (),
            countersigned_by=countersigned_by or (),
            page=page,
            as_json=json,
        )


def lineage(
    registry: Annotated[Path, typer.Argument(help="A home, or a registry of models.")],
    client: Annotated[
        str | None, typer.Option(help="Show the models that still carry this client.")
    ] = None,
    json: Json = False,
) -> None:
    """List registered models, or those that carry a client.

    Example: secede lineage home --client site-3
    """
    from secede.cli import trust

    trust.lineage(registry, client, as_json=json)


def ledger_verify(
    ledger: Annotated[
        Path, typer.Argument(help="A home, a ledger's file, or its export in JSON lines.")
    ],
    expected: Annotated[
        str | None, typer.Option(help="A row that it must hold, as NUMBER:HASH.")
    ] = None,
    json: Json = False,
) -> None:
    """Find any altered, removed or reordered row.

    In a home the journal and the receipts name heads that it must hold, so that a cut tail shows
    too. For a file alone, give a receipt's head as --expected.

    Example: secede ledger verify home
    """
    from secede.cli import trust

    trust.ledger_verify(ledger, expected=expected, as_json=json)


def ledger_export(
    ledger: Annotated[Path, typer.Argument(help="A home, or a ledger's file.")],
    out: Annotated[Path, typer.Argument(help="The file of JSON lines to write.")],
    json: Json = False,
) -> None:
    """Write the ledger as JSON lines, to hand it on.

    It is verified on the way; whoever has the file can verify it too, without SQLite.

    Example: secede ledger export home ledger.jsonl
    """
    from secede.cli import trust

    trust.ledger_export(ledger, out, as_json=json)


ledger_group = typer.Typer(help="Look after the ledger of erasures.", no_args_is_help=True)
ledger_group.command("verify")(ledger_verify)
ledger_group.command("export")(ledger_export)
