"""Commands about requests (list, put off, allow more, close) and commitments to samples."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import click
import typer
from typer.core import TyperGroup

from secede.cli.options import Auditors, Json

Folder = Annotated[Path, typer.Option("--home", help="The federation's home folder.")]
Number = Annotated[int, typer.Argument(help="The request's number, as `secede requests` lists it.")]


class _WithDefault(TyperGroup):
    """Takes what begins with none of its commands as one of them."""

    usual = ""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command."""
        known = not args or args[0] in self.commands
        return super().resolve_command(ctx, args if known else [self.usual, *args])


class _ListsByDefault(_WithDefault):
    """Takes `secede requests HOME` as `secede requests list HOME`."""

    usual = "list"


class _WholeByDefault(_WithDefault):
    """Takes `secede commitment HOME CLIENT` as `secede commitment whole HOME CLIENT`."""

    usual = "whole"


def list_requests(
    journal: Annotated[Path, typer.Argument(help="A home, or the server's journal of requests.")],
    json: Json = False,
) -> None:
    """List requests to be erased, with the days left.

    A request is due a month after its receipt (GDPR Art. 12), or later where it was extended.

    Example: secede requests home
    """
    from secede.cli import requests as bodies

    bodies.requests(journal, now=datetime.now(UTC), as_json=json)


def extend(
    number: Number,
    home: Folder,
    reason: Annotated[str, typer.Option(help="Why, in one line; the client is told.")],
    months: Annotated[int, typer.Option(min=1, max=2, help="Beyond the first month.")] = 1,
    json: Json = False,
) -> None:
    """Put a request's due date off.

    Art. 12 allows two further months if the client hears of it within the first: the
    acknowledgement is signed anew, with the later date.

    Example: secede requests extend 3 --home home --months 1 --reason "many requests at once"
    """
    from secede.cli import requests as bodies

    bodies.extend(home, number, months, reason, now=datetime.now(UTC), as_json=json)


def quota(
    client: Annotated[str, typer.Argument(help="The client's name.")],
    most: Annotated[int, typer.Argument(min=0, help="Requests in 30 days.")],
    home: Folder,
    json: Json = False,
) -> None:
    """Allow a client more, or fewer, requests than the others.

    Example: secede requests quota site-3 10 --home home
    """
    from secede.cli import requests as bodies

    bodies.quota(home, client, most, as_json=json)


def close(
    number: Number,
    home: Folder,
    reason: Annotated[str, typer.Option(help="Why, in one line; it stays in the journal.")],
    json: Json = False,
) -> None:
    """End an open request without erasing.

    It ends as refused; what was tried for it is destroyed, and the serving model stays.

    Example: secede requests close 3 --home home --reason "withdrawn by the client"
    """
    from secede.cli import homes

    homes.close(home, number, reason, as_json=json)


group = typer.Typer(
    cls=_ListsByDefault,
    help="List requests to be erased with the days left, or look after one.",
    no_args_is_help=True,
)
group.command("list")(list_requests)
group.command("extend")(extend)
group.command("quota")(quota)
group.command("close")(close)


Home = Annotated[Path, typer.Argument(help="The federation's home folder.")]
Client = Annotated[str, typer.Argument(help="Whose samples.")]


def commitment_whole(
    home: Home,
    client: Client,
    receipt: Annotated[
        Path | None,
        typer.Option(help="Compare with what this receipt, or the client's in a folder, says."),
    ] = None,
    json: Json = False,
) -> None:
    """Show that a client's samples are those committed to.

    The commitment is computed again from the samples and the salt, which lies at the client: who
    has neither cannot. Nothing is sent or written.

    Example: secede commitment home site-0 --receipt home/receipts
    """
    from secede.cli import committing

    committing.whole(home, client, receipt, as_json=json)


def commitment_prove(
    home: Home,
    client: Client,
    index: Annotated[int, typer.Argument(min=0, help="The sample's number, from 0.")],
    out: Annotated[Path, typer.Option(help="The proof's file.")] = Path("proof.json"),
    sample: Annotated[Path, typer.Option(help="The sample's own file, as committed to.")] = Path(
        "sample.bin"
    ),
    json: Json = False,
) -> None:
    """Write what shows that one sample was committed to.

    At the client, who has samples and salt. The two files show this sample to whoever gets them,
    and nothing of any other; without the sample the proof tells nothing.

    Example: secede commitment prove home site-0 17
    """
    from secede.cli import committing

    committing.prove(home, client, index, out, sample, as_json=json)


def commitment_check(
    proof: Annotated[Path, typer.Argument(help="The proof's file.")],
    sample: Annotated[Path, typer.Argument(help="The sample's file.")],
    receipt: Annotated[
        Path, typer.Option(help="The receipt that holds the commitment, or a folder of them.")
    ],
    keys: Annotated[Path, typer.Option(help="Folder with the signers' public keys.")] = Path(
        "keys"
    ),
    server: Annotated[str, typer.Option(help="The name of the server's key.")] = "server",
    auditor: Auditors = None,
    json: Json = False,
) -> None:
    """Check that one sample was committed to, offline.

    The receipt is verified first. Every altered byte of sample, proof or receipt is found.

    Example: secede commitment check proof.json sample.bin --receipt receipt.json --keys keys
    """
    from secede.cli import committing

    committing.check(
        proof, sample, receipt, keys, server=server, auditors=auditor or (), as_json=json
    )


commitment_group = typer.Typer(
    cls=_WholeByDefault,
    help="Show what a receipt's commitment to a client's samples was made from.",
    no_args_is_help=True,
)
commitment_group.command("whole")(commitment_whole)
commitment_group.command("prove")(commitment_prove)
commitment_group.command("check")(commitment_check)
