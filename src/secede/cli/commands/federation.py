"""`secede federation init`: train a simulated federation and set up its home."""

from __future__ import annotations

import re
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from secede.cli.commands.run import search_folder
from secede.cli.shared import Device, Json, Limit, Rounds, print_json
from secede.errors import StoppedError

group = typer.Typer(
    suggest_commands=False,  # click does it too
    name="federation",
    help="Set up a simulated federation to erase from, or register a change of a home.",
    no_args_is_help=True,
)


@group.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="HOME", help="Home folder to make.")],
    experiment: Annotated[
        str, typer.Argument(metavar="PRESET|FILE.toml", help="See `secede presets`.")
    ] = "demo",
    name: Annotated[
        str | None,
        typer.Option(help="Name of the federation.", show_default="the experiment's name"),
    ] = None,
    controller: Annotated[
        str | None, typer.Option(help="Who is responsible for the data, for receipts.")
    ] = None,
    contact: Annotated[
        str | None, typer.Option(help="Address of an office to ask, for receipts.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything that is random.")] = 0,
    canaries: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=256,
            help="Canaries that each client plants before the training; 0 for none. "
            "See docs/evidence.md.",
            show_default="the experiment's",
        ),
    ] = None,
    rounds: Rounds = None,
    device: Device = None,
    limit: Limit = None,
    json: Json = False,
) -> None:
    """Train a simulated federation and set up its home.

    The home holds the serving model, the registry of models, journal, ledger and keys. Clients are
    called site-0, site-1, and so on. What would be at each of them, its private key too, is in
    HOME/sites.

    Example: secede federation init home demo --name north

    Another: secede federation init home demo --canaries 16
    """
    from secede.erasure import ModelRegistry
    from secede.experiments import override, presets
    from secede.simulation.new_federation import create_federation

    changes = {"training.rounds": rounds, "device": device, "limit": limit}
    changes |= {"canaries.count": canaries}
    config = override(presets.load(experiment), changes)
    existed = folder.exists()
    try:
        home = create_federation(
            folder,
            config,
            name=name or _usable_name(config.name),
            seed=seed,
            search=search_folder(experiment),
            now=datetime.now(UTC),
            controller=controller,
            contact=contact,
        )
    except KeyboardInterrupt:
        raise StoppedError(_clean_up(folder, existed=existed)) from None
    federation = home.federation
    clients = [client.name for client in federation.clients]
    planted = sum(client.scope.canaries is not None for client in federation.clients)
    with ModelRegistry(home.registry, read_only=True) as registry:
        serving = registry.serving(federation.run)
    model = serving.digest if serving else None
    if json:
        row = {"home": str(folder), "federation": federation.name}
        print_json({**row, "model": model, "clients": clients, "with_canaries": planted})
        return
    print(f"{folder}  home of federation {federation.name}: {', '.join(clients)}")
    print(f"model {model} serves")
    print(_said_of_canaries(planted, len(clients)))
    print(f"{home.keys}  everybody's public keys; the server's private one is {folder}/server.key")
    print(f"{folder / 'sites'}  what would be at the clients, their private keys too")
    if config.settings:
        print("The config's settings of methods are for `secede run`; an erasure has --set.")


@group.command()
def register(
    folder: Annotated[Path, typer.Argument(metavar="HOME", help="Home folder.")],
    json: Json = False,
) -> None:
    """Enter your own change of federation.json, or of a public key, into the ledger.

    Each start compares both with the ledger and refuses what it does not name. Everything else in
    the home must agree. Run it after a client's key was replaced in HOME/keys.

    Example: secede federation register home
    """
    from secede.erasure import Home, register_change

    changed = register_change(Home(folder), datetime.now(UTC))
    if json:
        print_json({"home": str(folder), "changed": changed})
        return
    said = "entered into the ledger" if changed else "as the ledger has them: nothing is entered"
    print(f"{folder}: federation.json and public keys {said}")


def _said_of_canaries(planted: int, clients: int) -> str:
    """Say how many clients planted canaries, and what follows where none did."""
    if not planted:
        return "no client planted canaries: receipts will say that forgetting is undetermined"
    return f"canaries: planted by {planted} of {clients} clients, and committed to"


def _clean_up(folder: Path, *, existed: bool) -> str:
    """Remove what was begun, unless the folder is older, and return the error text."""
    if (folder / "federation.json").exists():
        return f"interrupted when all was done: {folder} is a federation's home"
    if not existed:
        shutil.rmtree(folder, ignore_errors=True)
    rest = f"{folder} is no home" if folder.exists() else f"nothing was written to {folder}"
    return f"interrupted: {rest}; the same command starts again"


def _usable_name(text: str) -> str:
    """Return a name for a federation that is called after its experiment."""
    return re.sub(r"[^A-Za-z0-9._:-]+", "-", text).lstrip(".")[:64] or "federation"
