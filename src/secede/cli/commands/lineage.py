"""`secede lineage`: which models there are, and which still carry a client."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from secede.cli.shared import Json, print_json
from secede.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from secede.erasure import Model


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
