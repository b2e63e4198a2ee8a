"""`secede erase`: erase a client from a simulated federation, from request to receipt."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from json import loads
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from secede.cli.erase_options import EraseArguments, read_request_file, with_erase_options
from secede.cli.progress import repeating_when_quiet
from secede.cli.shared import HomeFolder, Json, naming, print_json
from secede.errors import ConfigError, RequestError, RolledBackError, StoppedError

if TYPE_CHECKING:
    from secede.erasure import Outcome

logger = logging.getLogger(__name__)


@with_erase_options
def erase(
    request: Annotated[Path, typer.Argument(help="The signed request.")],
    folder: HomeFolder,
    arguments: EraseArguments,
    json: Json = False,
) -> None:
    """Erase a client, from its signed request to a receipt.

    The ladder has three rungs: a local step at the leaver; a server-side method, if the leaver is
    gone, silent or refused; retraining. The next rung follows when the retained clients' accuracy
    falls too far. Interrupted or killed, the same command continues where it stopped.

    The federation is one that `secede federation init` trained. For a live one see `secede flower
    erase` and docs/nvflare.md.

    Example: secede erase request.json --home home --dry-run

    Another: secede erase request.json --home home --aggregation median
    """
    from secede.erasure import Home, plan_table, receive, verify_request
    from secede.erasure import erase as run_erasure
    from secede.erasure import plan as make_plan
    from secede.simulation.backend import Recipe, SimulatedBackend

    check_simulated(folder)
    options, home, now = arguments.options(), Home(folder), datetime.now(UTC)
    data = read_request_file(request)
    with naming(request):
        document = verify_request(data, home.client_keys(), federation=home.federation.name)
    gone = (document.client,) if arguments.leaver_gone else ()
    if arguments.dry_run:
        backend = SimulatedBackend(home, gone=gone)
        plan = make_plan(home, backend, document, options=options, now=now)
        if json:
            print(plan.model_dump_json(indent=2))
        else:
            Console().print(plan_table(plan))
        return
    key = home.server_key()  # before any work is done
    Recipe.load(home)
    entry = receive(home, data, now)
    logger.info(f"request {entry.id} of {entry.client}, due {entry.due:%Y-%m-%d}")
    logger.info(f"acknowledgement for {entry.client}: {home.acknowledgement_path(entry.digest)}")
    try:
        with repeating_when_quiet():
            outcome = run_erasure(
                home,
                SimulatedBackend(home, gone=gone),
                entry.id,
                key=key,
                clock=lambda: datetime.now(UTC),
                options=options,
            )
    except KeyboardInterrupt:
        raise StoppedError("interrupted; the same command continues from here") from None
    _print_outcome(outcome, as_json=json)


def check_simulated(home: Path) -> None:
    """Raise if a home belongs to a live federation, and say which command reaches that."""
    live = {
        "flower": "Flower federation: run `secede flower erase PROJECT name:CLIENT`, or call "
        "secede.flower.erase() in the server app (docs/flower.md)",
        "nvflare": "NVFlare federation: run the erasure's job (docs/nvflare.md)",
        None: "federation that nobody was erased from yet: run `secede flower erase PROJECT "
        "name:CLIENT` (docs/flower.md), or the erasure's job on NVFlare (docs/nvflare.md)",
    }
    engine = None
    with suppress(OSError, ValueError):  # what is damaged is reported by whoever needs it
        recipe = loads((home / "recipe.json").read_bytes())
        engine = str(recipe["engine"]) if "engine" in recipe else None
    if engine in live and (engine or (home / "rounds.jsonl").exists()):
        raise ConfigError(f"{home} is the home of a live {live[engine]}")


def _print_outcome(outcome: Outcome, *, as_json: bool) -> None:
    """Print how an erasure ended; raise if it did not end with a new model."""
    if as_json:
        row = asdict(outcome)
        for key in ("receipt", "page"):
            row[key] = row[key] and str(row[key])
        row["failures"] = [
            failure.model_dump(include={"rung", "method", "outcome", "reason"})
            for failure in outcome.failures
        ]
        print_json(row)
    if outcome.state == "refused":
        raise RequestError(f"request {outcome.request} is refused: {outcome.reason}")
    if outcome.state == "rolled-back":
        raise RolledBackError(f"request {outcome.request} is rolled back: {outcome.reason}")
    if as_json:
        return
    print(f"{outcome.client} is erased: {outcome.method} ({outcome.rung})")
    print(f"model {outcome.model} serves")
    print(f"receipt {outcome.receipt}")
    print(f"page {outcome.page}")
