"""Check what others state: ledgers, receipts and the registry of models. Torch stays out.

Everything works offline, with files and public keys alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from secede import files
from secede.erasure import certificate, ledger, receipt
from secede.erasure.canonical import read
from secede.erasure.chain import Head
from secede.erasure.home import Home
from secede.erasure.journal import Journal
from secede.erasure.keys import load_private
from secede.erasure.lineage import Lineage
from secede.erasure.predicate import LIMITS
from secede.erasure.receipt import Verified
from secede.erasure.registry import Model
from secede.erasure.signers import Signers
from secede.errors import ConfigError


def ledger_verify(path: Path, *, expected: str | None = None, as_json: bool) -> None:
    """Check a ledger's chain, and that it holds the row `expected`, given as NUMBER:HASH.

    In a home it must also hold the heads that the journal and the receipts there name.
    """
    file, known, broken = _heads(path)
    given = [] if expected is None else [_head(expected)]
    head = ledger.verify(file, *known, *given)
    if as_json:
        told = {"whole": True, **head.model_dump(), "heads_compared": len(known) + len(given)}
        print(json.dumps({**told, "receipts_not_usable": list(map(str, broken))}, indent=2))
        return
    print(f"{file} is whole: {head.number:,} rows, each continues the one before")
    print(f"head {head.number}:{head.hash}")
    if known:
        print(f"It holds the {len(known)} heads that the journal and the receipts beside it name.")
    elif expected is None:
        print("A cut tail shows only beside a known head: give a home, or --expected.")
    for receipt_file in broken:
        print(f"{receipt_file} does not verify; what it says of the ledger was not used.")


def ledger_export(path: Path, out: Path, *, as_json: bool) -> None:
    """Write a ledger as JSON lines, verified on the way."""
    file, known, _ = _heads(path)
    if out.exists():
        raise ConfigError(f"{out} exists and is not replaced: name another file")
    head = ledger.export(ledger.rows_of(file), out, *known)
    if as_json:
        print(json.dumps({"file": str(out), **head.model_dump()}, indent=2))
        return
    print(f"{out}  {head.number:,} rows")
    print(f"head {head.number}:{head.hash}")


def verify(
    path: Path,
    keys: Path,
    *,
    model: Path | None = None,
    ledger: Path | None = None,
    server: str = receipt.SERVER,
    auditors: Sequence[Path] = (),
    countersigned_by: Sequence[str] = (),
    page: bool = False,
    as_json: bool,
) -> None:
    """Check a receipt against a folder of public keys, and a model and a ledger where given.

    With `page`, the HTML page for people is written beside it.
    """
    signers = Signers.load(keys, auditors)
    verified = receipt.verify(
        read(path, receipt.LIMIT),
        signers.keys,
        auditors=signers.auditors,
        model_digest=None if model is None else _digest(model),
        ledger=ledger,
        server=server,
        countersigned_by=countersigned_by,
    )
    written = certificate.write(verified, path) if page else None
    if as_json:
        print(json.dumps(_told(verified, written), indent=2))
        return
    _say(path, verified)
    if written is not None:
        print(f"page       {written}")


def countersign(
    path: Path,
    key: Path,
    keys: Path,
    *,
    server: str = receipt.SERVER,
    auditors: Sequence[Path] = (),
    as_json: bool,
) -> None:
    """Add the leaver's or an auditor's signature to a receipt that holds, and renew its page.

    Nothing is written unless the receipt still holds with it.
    """
    signers, data = Signers.load(keys, auditors), read(path, receipt.LIMIT)
    receipt.verify(data, signers.keys, auditors=signers.auditors, server=server)
    signed = receipt.countersign(data, load_private(key))
    verified = receipt.verify(signed, signers.keys, auditors=signers.auditors, server=server)
    with files.private():
        files.write_bytes(path, signed)
        page = certificate.write(verified, path)
    names = list(verified.countersigned_by)
    if as_json:
        told = {"receipt": str(path), "page": str(page), "countersigned_by": names}
        print(json.dumps(told, indent=2))
        return
    print(f"{path}  countersigned by {', '.join(names)}")
    print(f"{page}  its page says so")


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
        whole = f"whole up to row {verified.ledger.number:,}; says the same as the receipt"
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


def _heads(path: Path) -> tuple[Path, list[Head], list[Path]]:
    """Return a ledger's file, the heads that are known beside it, and receipts that do not hold."""
    folder = path if path.is_dir() else path.parent
    file, journal = (folder / "ledger.sqlite" if path.is_dir() else path), folder / "journal.sqlite"
    if path.is_dir() and not journal.is_file():
        raise ConfigError(f"{path} is no federation's home: give one, or a ledger's file")
    if not journal.is_file() or file.name != "ledger.sqlite":
        return file, [], []
    with Journal(journal, read_only=True) as opened:
        kept = opened.head()
    heads, broken = Home(folder).heads()
    return file, [head for head in (kept, *heads) if head is not None], broken


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
