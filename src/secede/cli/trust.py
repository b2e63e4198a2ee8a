"""Check what others state: ledgers, receipts and the registry of models. Torch stays out.

Everything works offline, with files and public keys alone.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from secede.erasure import certificate, ledger, receipt
from secede.erasure.canonical import read
from secede.erasure.chain import Head
from secede.erasure.keys import Keyring
from secede.erasure.lineage import Lineage
from secede.erasure.predicate import LIMITS
from secede.erasure.receipt import Verified
from secede.erasure.registry import Model
from secede.errors import ConfigError


def ledger_verify(path: Path, *, expected: str | None = None, as_json: bool) -> None:
    """Check a ledger's chain, and that it holds the row `expected`, given as NUMBER:HASH."""
    head = ledger.verify(path, None if expected is None else _head(expected))
    if as_json:
        print(json.dumps({"whole": True, **head.model_dump()}, indent=2))
        return
    print(f"{path} is whole: {head.number:,} rows, each continues the one before")
    print(f"head {head.number}:{head.hash}")
    if expected is None:
        print("A cut tail shows only beside a known head, such as a receipt's: give --expected.")


def verify(
    path: Path,
    keys: Path,
    *,
    model: Path | None = None,
    ledger: Path | None = None,
    server: str = receipt.SERVER,
    countersignatures: int = 0,
    page: bool = False,
    as_json: bool,
) -> None:
    """Check a receipt against a folder of public keys, and a model and a ledger where given.

    With `page`, the HTML page for people is written beside it.
    """
    verified = receipt.verify(
        read(path, receipt.LIMIT),
        Keyring.load(keys),
        model_digest=None if model is None else _digest(model),
        ledger=ledger,
        server=server,
        countersignatures=countersignatures,
    )
    written = certificate.write(verified, path) if page else None
    if as_json:
        print(json.dumps(_told(verified, written), indent=2))
        return
    _say(path, verified)
    if written is not None:
        print(f"page       {written}")


def lineage(path: Path, client: str | None = None, *, as_json: bool) -> None:
    """Print the registered models; with `client`, those that still carry it."""
    with Lineage(path, read_only=True) as registry:
        models = registry.models() if client is None else registry.carriers(client)
        erased = registry.erased()
    if as_json:
        rows = [{**vars(found), "clients": list(found.clients)} for found in models]
        print(json.dumps({"models": rows, "erased_clients": list(erased)}, indent=2))
        return
    if client is not None:
        print(_carried(client, models, client in erased))
    if models:
        Console().print(_table(models))
    elif client is None:
        print("no models yet")


def _say(path: Path, verified: Verified) -> None:
    told = verified.statement.predicate
    others = ", ".join(verified.countersigned_by)
    answers = told.verification
    checked = "is the erased model" if verified.model_checked else "not compared (--model FILE)"
    if verified.ledger is None:
        whole = "not compared (--ledger FILE)"
    else:
        whole = f"whole up to row {verified.ledger.number:,}; holds row {told.ledger.number:,}"
    lines = {
        "signed by": verified.server + (f"; countersigned by {others}" if others else ""),
        "client": f"{told.request.client}, federation {told.request.federation}",
        "completed": f"{told.request.completed[:10]}, {certificate.clock(told.request)}",
        "how": f"{told.method.name} ({told.method.rung}), {told.method.rounds} rounds after it",
        "forgotten": f"{answers.forgotten}, within {answers.margin_points:g} points of retraining"
        if answers.forgotten == "yes"
        else answers.forgotten,
        "useful": answers.useful,
        "model": checked,
        "ledger": whole,
    }
    print(f"{path} holds: not a byte was altered since it was signed")
    for name, said in lines.items():
        print(f"{name:<10} {said}")
    if not others:
        print("Nobody has countersigned it.")
    print(LIMITS[0])


def _told(verified: Verified, page: Path | None) -> dict[str, object]:
    return {
        "verified": True,
        "receipt": verified.digest,
        "server": verified.server,
        "countersigned_by": list(verified.countersigned_by),
        "model_checked": verified.model_checked,
        "ledger": verified.ledger and verified.ledger.model_dump(),
        "page": page and str(page),
        "statement": verified.statement.model_dump(mode="json", by_alias=True),
    }


def _carried(client: str, models: tuple[Model, ...], erased: bool) -> str:
    past = "was erased" if erased else "was not erased"
    if not models:
        return f"No model in use carries {client!r}; it {past}."
    serving = sum(model.status == "serving" for model in models)
    count = "1 model still carries" if len(models) == 1 else f"{len(models)} models still carry"
    return f"{count} {client!r}, {serving} of them serving; it {past}."


def _table(models: tuple[Model, ...]) -> Table:
    table = Table(title="Models", title_justify="left", box=box.SIMPLE)
    for name in ("model", "parent", "run", "round", "status", "since", "carries"):
        table.add_column(name, overflow="fold")
    for model in models:
        cells = (
            model.digest[:12],
            (model.parent or "–")[:12],
            model.run,
            str(model.round),
            model.status,
            model.changed[:10],
            ", ".join(model.clients) or "nobody",
        )
        table.add_row(*(Text(cell) for cell in cells))  # names such as :no: are no emoji
    return table


def _head(text: str) -> Head:
    if not re.fullmatch(r"[0-9]{1,15}:[0-9a-f]{64}", text):
        raise ConfigError(
            f"expected head {text[:80]!r} cannot be used: give NUMBER:HASH as a receipt or an "
            "earlier check names it"
        )
    number, _, digest = text.partition(":")
    return Head(number=int(number), hash=digest)


def _digest(model: Path) -> str:
    from secede import state as states  # torch, only where a model is given

    return states.digest(states.load(model)[0])
