"""`secede requests`: list requests for erasure, extend one, close one, set a quota."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from secede.cli.commands.erase import check_simulated
from secede.cli.shared import HomeFolder, Json, group_with_default, print_json
from secede.errors import ConfigError

if TYPE_CHECKING:
    from secede.erasure import Entry

Number = Annotated[int, typer.Argument(help="Number of the request, from `secede requests`.")]

group = typer.Typer(
    suggest_commands=False,  # click does it too
    name="requests",
    cls=group_with_default("list"),
    help="List requests for erasure and the days left, or manage one.",
    no_args_is_help=True,
)


@group.command("list")
def list_requests(
    home: Annotated[Path, typer.Argument(help="Home folder, or the file of its journal.")],
    json: Json = False,
) -> None:
    """List requests for erasure, with the days left.

    A request is due a month after its receipt (GDPR Art. 12), or later if it was extended.

    Example: secede requests home
    """
    from secede.erasure import Journal

    path = home / "journal.sqlite" if home.is_dir() else home
    if not path.is_file():
        raise ConfigError(f"no journal at {path}: give a home folder, or its journal.sqlite")
    with Journal(path, read_only=True) as journal:
        entries = journal.entries()
    now = datetime.now(UTC)
    if json:
        print_json([_row(entry, now) for entry in entries])
    elif not entries:
        print("no requests yet")
    else:
        Console().print(_table(entries, now))


@group.command()
def extend(
    number: Number,
    folder: HomeFolder,
    reason: Annotated[str, typer.Option(help="Reason, in one line, for the client.")],
    months: Annotated[int, typer.Option(min=1, max=2, help="Months after the first.")] = 1,
    json: Json = False,
) -> None:
    """Postpone the due date of a request.

    Art. 12 allows two more months if the client is told within the first. The acknowledgement is
    signed again, with the later date and the reason.

    Example: secede requests extend 3 --home home --months 1 --reason "many requests at once"
    """
    from secede.erasure import Home, Journal, enter_into_ledger, format_time, write_acknowledgement

    home, now = Home(folder), datetime.now(UTC)
    home.server_key()  # before anything is changed
    home.check_journal()
    with Journal(home.journal) as journal:
        extended = journal.extend(number, months, reason, now)
        entry = write_acknowledgement(home, journal, extended, now)
        enter_into_ledger(home, journal, entry, now)
    path = home.acknowledgement_path(entry.digest)
    if json:
        print_json({**_row(entry, now), "acknowledgement": str(path)})
        return
    print(f"request {number} of {entry.client} is due {format_time(entry.due)[:10]}")
    print(f"{path}  give it to {entry.client}")


@group.command()
def close(
    number: Number,
    folder: HomeFolder,
    reason: Annotated[str, typer.Option(help="Reason, in one line, for journal and client.")],
    withdrawn: Annotated[
        bool,
        typer.Option(
            "--withdrawn", help="The client withdrew the request: it counts against its quota."
        ),
    ] = False,
    json: Json = False,
) -> None:
    """End an open request without erasing.

    The request ends as refused. Candidate models are destroyed, and the serving model stays.

    Example: secede requests close 3 --home home --reason "stays after all" --withdrawn
    """
    from secede.erasure import Home, close_request
    from secede.simulation.backend import SimulatedBackend

    check_simulated(folder)
    home = Home(folder)
    outcome = close_request(
        home,
        SimulatedBackend(home),
        number,
        reason,
        key=home.server_key(),
        clock=lambda: datetime.now(UTC),
        withdrawn=withdrawn,
    )
    if json:
        row = {"request": number, "client": outcome.client, "state": outcome.state}
        print_json({**row, "reason": outcome.reason})
        return
    print(f"request {number} of {outcome.client} is {outcome.state}: {outcome.reason}")


@group.command()
def quota(
    client: Annotated[str, typer.Argument(help="Name of the client.")],
    limit: Annotated[int, typer.Argument(min=0, help="Requests in 30 days.")],
    folder: HomeFolder,
    json: Json = False,
) -> None:
    """Set how many requests a client may make in 30 days.

    Requests that the server refused, closed or rolled back do not count.

    Example: secede requests quota site-3 10 --home home
    """
    from secede.erasure import Home, Journal

    home = Home(folder)
    home.federation.client(client)
    with Journal(home.journal) as journal:
        journal.set_quota(client, limit)
    if json:
        print_json({"client": client, "requests_in_30_days": limit})
        return
    print(f"{client} may make {limit} requests in 30 days")


def _row(entry: Entry, now: datetime) -> dict[str, object]:
    from secede.erasure import format_time

    return {
        "request": entry.id,
        "client": entry.client,
        "state": entry.state,
        "open": entry.open,
        "received": format_time(entry.received),
        "acknowledged": entry.acknowledged and format_time(entry.acknowledged),
        "due": format_time(entry.due),
        "extended_months": entry.extended,
        "reason": entry.reason,
        "days_left": entry.days_left(now),
        "digest": entry.digest,
    }


def _table(entries: list[Entry], now: datetime) -> Table:
    """Return columns that fit 80 characters, dates in one piece."""
    from secede.erasure import format_time

    extended = any(entry.extended for entry in entries)
    table = Table(
        title="Requests for erasure",
        title_justify="left",
        caption="* extended" if extended else None,
        caption_justify="left",
        box=box.SIMPLE,
    )
    for name in ("request", "client", "state", "received", "due", "days left"):
        table.add_column(name, overflow="fold", no_wrap=name != "client")
    for entry in entries:
        cells = (
            str(entry.id),
            entry.client,
            entry.state,
            format_time(entry.received)[:10],
            format_time(entry.due)[:10] + ("*" if entry.extended else ""),
            _days_left(entry.days_left(now)),
        )
        table.add_row(*(Text(cell) for cell in cells))
    return table


def _days_left(days: int | None) -> str:
    if days is None:
        return "closed"
    return f"overdue {-days} d" if days < 0 else str(days)
