"""Keys and requests for erasure: make them, and list those that came with the days left."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from secede import files
from secede.erasure.canonical_json import parse, read_file
from secede.erasure.documents.request import MAX_REQUEST_BYTES, new_request, sign_request
from secede.erasure.signing import dsse
from secede.erasure.signing.keys import generate_key_pair, key_id, load_private, load_public
from secede.erasure.storage.journal import Journal
from secede.erasure.storage.journal_entries import Entry
from secede.erasure.types import format_time
from secede.errors import ConfigError, RequestError, TrustError


def keygen(name: str, folder: Path, *, as_json: bool) -> None:
    """Make a pair of keys and say what to do with each."""
    private, public = generate_key_pair(folder, name)
    identity = key_id(load_public(public))
    if as_json:
        told = {"private": str(private), "public": str(public), "key_id": identity}
        print(json.dumps(told, indent=2))
        return
    print(f"{private}  keep it secret; only you can read it (0600)")
    print(f"{public}  give it to the federation's server")
    print(f"key id {identity}")


def request(
    *,
    federation: str,
    client: str,
    trigger: str,
    model: str,
    key: Path,
    out: Path,
    now: datetime,
    days: int,
    as_json: bool,
) -> None:
    """Sign a request for erasure and write it to `out`; a file that is there is not replaced.

    `model` is a digest of 64 hexadecimal digits, or a safetensors file.
    """
    made = new_request(
        federation=federation,
        client=client,
        trigger=trigger,
        model=_digest(model),
        now=now,
        lifetime=timedelta(days=days),
    )
    signed = sign_request(made, load_private(key))
    try:
        files.create(out, signed, 0o644)
    except FileExistsError:
        raise ConfigError(f"{out} exists and is not replaced: name another file") from None
    if as_json:
        told = {"file": str(out), "request": made.digest(), "expires": made.expires}
        print(json.dumps(told, indent=2))
        return
    print(f"{out}  {client} asks {federation} for erasure ({trigger})")
    print(f"request {made.digest()}")
    print(f"send it before {made.expires}")


def signed(path: Path) -> bytes:
    """Return a signed request's bytes, not verified; ConfigError if it plainly is something else.

    What may be a damaged request is returned: verifying it says so.
    """
    found = "is a folder and" if path.is_dir() else "is"
    other = ConfigError(
        f"{path} {found} no request: give the file that `secede request` wrote, request.json "
        "unless --out named another"
    )
    if path.is_dir():
        raise other
    try:
        data = read_file(path, MAX_REQUEST_BYTES)
    except TrustError as error:  # longer than any request
        raise other from error
    if not data.startswith(b"{"):
        raise other
    with suppress(TrustError):
        if not dsse.FIELDS & parse(data, MAX_REQUEST_BYTES).keys():
            raise other
    return data


def addressed(home: Path | None, federation: str | None, model: str | None) -> tuple[str, str]:
    """Return federation and model as given, or a home's own and the one that serves there."""
    if home is None:
        if federation is None or model is None:
            raise ConfigError("give --federation and --model, or --home for both")
        return federation, model
    from secede.erasure.storage.home import Home
    from secede.erasure.storage.model_registry import ModelRegistry

    found = Home(home)
    known = found.federation
    with ModelRegistry(found.registry, read_only=True) as registry:
        serving = registry.serving(known.run)
    if serving is None and model is None:
        raise ConfigError(f"no model serves in {home}: give --model")
    return federation or known.name, model or (serving.digest if serving else "")


def check_known(folder: Path, client: str, key: Path) -> None:
    """Raise if the home knows that it would refuse a request of `client` signed with `key`."""
    from secede.erasure.storage.home import Home
    from secede.erasure.storage.model_registry import ModelRegistry

    home = Home(folder)
    home.federation.client(client)
    with ModelRegistry(home.registry, read_only=True) as registry:
        if client in registry.erased_clients():
            raise RequestError(f"{client!r} was erased already: there is nothing to ask for")
    ring, identity = home.keyring(), key_id(load_private(key).public_key)
    if client in ring and key_id(ring[client]) != identity:
        whose = [f"{name}'s key" for name, public in ring.items() if key_id(public) == identity]
        raise ConfigError(
            f"{key} is {whose[0] if whose else 'a key that nobody has here'}, expected "
            f"{client}'s, whose public key is {home.keys / f'{client}.pub'}"
        )


def extend(
    folder: Path, number: int, months: int, reason: str, *, now: datetime, as_json: bool
) -> None:
    """Put a request's due date off, and sign for its client that it was."""
    from secede.erasure.storage.home import Home
    from secede.erasure.workflow.intake import enter_into_ledger, write_acknowledgement

    home = Home(folder)
    home.server_key()  # before anything is changed
    home.check_journal()
    with Journal(home.journal) as journal:
        entry = write_acknowledgement(
            home, journal, journal.extend(number, months, reason, now), now
        )
        enter_into_ledger(home, journal, entry, now)
    told = home.acknowledgement(entry.digest)
    if as_json:
        print(json.dumps({**_row(entry, now), "acknowledgement": str(told)}, indent=2))
        return
    print(f"request {number} of {entry.client} is due {format_time(entry.due)[:10]}")
    print(f"{told}  give it to {entry.client}")


def quota(folder: Path, client: str, most: int, *, as_json: bool) -> None:
    """Allow a client so many requests in 30 days."""
    from secede.erasure.storage.home import Home

    home = Home(folder)
    home.federation.client(client)
    with Journal(home.journal) as journal:
        journal.set_quota(client, most)
    if as_json:
        print(json.dumps({"client": client, "requests_in_30_days": most}, indent=2))
        return
    print(f"{client} may make {most} requests in 30 days")


def requests(journal: Path, *, now: datetime, as_json: bool) -> None:
    """Print the requests in a journal, with the days left for those that are open."""
    journal = journal / "journal.sqlite" if journal.is_dir() else journal
    if not journal.is_file():
        raise ConfigError(f"no journal at {journal}: expected the file of a server's requests")
    with Journal(journal, read_only=True) as opened:
        entries = opened.entries()
    if as_json:
        print(json.dumps([_row(entry, now) for entry in entries], indent=2))
    elif not entries:
        print("no requests yet")
    else:
        Console().print(_table(entries, now))


def _row(entry: Entry, now: datetime) -> dict[str, object]:
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
    """Return them in columns that fit 80 characters, dates in one piece."""
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
            _days(entry.days_left(now)),
        )
        table.add_row(*(Text(cell) for cell in cells))
    return table


def _days(left: int | None) -> str:
    if left is None:
        return "closed"
    return f"overdue {-left} d" if left < 0 else str(left)


def _digest(model: str) -> str:
    if re.fullmatch("[0-9a-f]{64}", model):
        return model
    if not Path(model).is_file():
        raise ConfigError(
            f"no model {model!r}: expected a digest of 64 hexadecimal digits or a safetensors file"
        )
    from secede import state as states  # torch, only where it is needed

    return states.digest(states.load(model)[0])
