"""Check what others state: ledgers, receipts and the registry of models. Torch stays out.

Everything works offline, with files and public keys alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.text import Text

from secede import files
from secede.erasure.canonical_json import read_file
from secede.erasure.documents.acknowledgement import (
    ACKNOWLEDGEMENT_TYPE,
    Acknowledgement,
    verify_acknowledgement,
)
from secede.erasure.documents.ledger_rows import Head
from secede.erasure.documents.receipt import (
    MAX_RECEIPT_BYTES,
    STANDING_LIMITS,
    MethodPart,
    Verification,
)
from secede.erasure.receipts.page import describe_duration, write_page
from secede.erasure.receipts.verify import Verified, countersign_receipt, verify_receipt
from secede.erasure.signing import dsse
from secede.erasure.signing.keys import SERVER, Signers, key_id, load_private
from secede.erasure.storage import ledger
from secede.erasure.storage.home import Home
from secede.erasure.storage.journal import Journal
from secede.erasure.storage.model_registry import Model, ModelRegistry
from secede.erasure.workflow import consistency
from secede.errors import ConfigError, TrustError, did_you_mean
from secede.text import plural


def ledger_verify(path: Path, *, expected: str | None = None, as_json: bool) -> None:
    """Check a ledger's chain, and that it holds the row `expected`, given as NUMBER:HASH.

    In a home it must also hold the heads that the journal and the receipts there name, and journal,
    registry of models and receipts must tell the same.
    """
    file, known, broken = _heads(path)
    given = [] if expected is None else [_head(expected)]
    head = ledger.verify(file, *known, *given)
    agrees = _agrees(file)
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
    if agrees:
        print("Journal, registry of models and receipts tell the same.")
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


@contextmanager
def about(path: Path) -> Iterator[None]:
    """Name the file in what is found wrong with it."""
    try:
        yield
    except TrustError as error:
        told = str(error)
        raise TrustError(told if told.startswith(str(path)) else f"{path}: {told}") from error


def verify(
    path: Path,
    keys: Path,
    *,
    model: Path | None = None,
    ledger: Path | None = None,
    server: str = SERVER,
    auditors: Sequence[Path] = (),
    countersigned_by: Sequence[str] = (),
    page: bool = False,
    as_json: bool,
) -> None:
    """Check a receipt against a folder of public keys, and a model and a ledger where given.

    An acknowledgement of a request is checked and told likewise. With `page`, the HTML page for
    people is written beside it.
    """
    signers, data = Signers.load(keys, auditors), read_file(path, MAX_RECEIPT_BYTES)
    with about(path):
        if dsse.payload_type(data, limit=MAX_RECEIPT_BYTES) == ACKNOWLEDGEMENT_TYPE:
            if model or ledger or countersigned_by or page:
                raise ConfigError(f"{path} is an acknowledgement: only receipts are compared")
            acknowledged = verify_acknowledgement(data, signers.keys, server=server)
            _say_acknowledged(path, acknowledged, as_json)
            return
        verified = verify_receipt(
            data,
            signers.keys,
            auditors=signers.auditors,
            model_digest=None if model is None else _digest(model),
            ledger=ledger,
            server=server,
            countersigned_by=countersigned_by,
        )
    written = write_page(verified, path) if page else None
    if as_json:
        print(json.dumps(_told(verified, written), indent=2))
        return
    _say(path, verified, key_id(signers.keys[verified.server]))
    if written is not None:
        print(f"page       {written}")


def countersign(
    path: Path,
    key: Path,
    keys: Path,
    *,
    server: str = SERVER,
    auditors: Sequence[Path] = (),
    as_json: bool,
) -> None:
    """Add the leaver's or an auditor's signature to a receipt that holds, and renew its page.

    Nothing is written unless the receipt still holds with it.
    """
    signers, private = Signers.load(keys, auditors), load_private(key)
    with files.lock_folder(path.parent), files.private():  # another may be countersigning it too
        data = read_file(path, MAX_RECEIPT_BYTES)
        with about(path):
            held = verify_receipt(data, signers.keys, auditors=signers.auditors, server=server)
            _check_entitled(key, key_id(private.public_key), signers, held)
            signed = countersign_receipt(data, private)
            verified = verify_receipt(
                signed, signers.keys, auditors=signers.auditors, server=server
            )
        files.write_bytes(path, signed)
        page = write_page(verified, path)
    names = list(verified.countersigned_by)
    if as_json:
        told = {"receipt": str(path), "page": str(page), "countersigned_by": names}
        print(json.dumps(told, indent=2))
        return
    print(f"{path}  countersigned by {', '.join(names)}")
    print(f"{page}  its page says so")


def _check_entitled(path: Path, identity: str, signers: Signers, held: Verified) -> None:
    """Raise if this key is somebody's whose signature on this receipt counts for nothing."""
    client = held.statement.predicate.request.client
    for name, public in signers.keys.items():
        if key_id(public) == identity and name != client:
            raise TrustError(
                f"{path} is the key of {name!r}, who is neither {client!r}, the client that left, "
                "nor an auditor: nothing is signed"
            )


def lineage(path: Path, client: str | None = None, *, as_json: bool) -> None:
    """Print a registry's, or a home's, models; with `client`, those that still carry it."""
    path = Home(path).registry if path.is_dir() else path
    with ModelRegistry(path, read_only=True) as registry:
        models = registry.models() if client is None else registry.carriers(client)
        erased, known = registry.erased_clients(), registry.clients()
    if client is not None and client not in known:
        raise ConfigError(
            f"no model ever carried {client!r}: {did_you_mean(client, known)}"
            f"expected one of {', '.join(sorted(known)[:20])}"
        )
    if as_json:
        rows = [{**vars(found), "clients": list(found.clients)} for found in models]
        print(json.dumps({"models": rows, "erased_clients": list(erased)}, indent=2))
        return
    if client is not None:
        print(_carried(client, models, client in erased))
    for model in models:
        Console().print(_block(model))
    if not models and client is None:
        print("no models yet")


def _say_acknowledged(path: Path, told: Acknowledgement, as_json: bool) -> None:
    """Tell what the server said of a request: that it came, when it is due, how it ended."""
    if as_json:
        said = {"verified": True, "acknowledgement": told.model_dump(mode="json")}
        print(json.dumps(said, indent=2))
        return
    print(f"{path} holds: the server signed it, not a byte was altered since")
    print(f"client     {told.client}, federation {told.federation}")
    print(f"request    {told.request}")
    print(f"received   {told.received[:10]}, due {told.due[:10]}")
    if told.extended_to is not None:
        print(f"put off    to {told.extended_to[:10]}: {told.reason}")
    if told.ended is not None:
        print(f"ended      {told.ended.at[:10]}, {told.ended.state}: {told.ended.reason}")
        print(told.ended.remedies)


def _say(path: Path, verified: Verified, identity: str) -> None:
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
        "key id": identity,
        "client": f"{told.request.client}, federation {told.request.federation}",
        "completed": f"{told.request.completed[:10]}, {describe_duration(told.request)}",
        "how": _how(told.method),
        "forgotten": _forgotten(answers),
        "useful": answers.useful,
        "model": checked,
        "ledger": whole,
    }
    print(f"{path} holds: not a byte was altered since it was signed")
    for name, said in lines.items():
        print(f"{name:<10} {said}")
    if not others:
        print("Nobody has countersigned it.")
    print(STANDING_LIMITS[0])


def _forgotten(answers: Verification) -> str:
    if answers.forgotten != "yes":
        return answers.forgotten
    if answers.by_definition:
        return "yes, by definition: trained from scratch without the client"
    return f"yes, within {answers.margin_points:g} points of retraining"


def _how(method: MethodPart) -> str:
    count = plural(method.rounds, "round")
    after = "" if method.rung == "retraining" else " after it"
    return f"{method.name} ({method.rung}), {count}{after}"


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
    if len(models) == 1:
        rest = "and it serves" if serving else "and it does not serve"
        return f"1 model still carries {client!r}, {rest}; {client!r} {past}."
    rest = f"{serving} of them {'serves' if serving == 1 else 'serve'}"
    return f"{len(models)} models still carry {client!r}, {rest}; {client!r} {past}."


def _block(model: Model) -> Text:
    """Return a model in three lines: digests and dates stay in one piece at any width."""
    parent = f"from {model.parent[:12]}" if model.parent else "from scratch"
    return Text(  # no markup: names such as :no: are no emoji
        f"{model.digest[:12]}  {model.status} since {model.changed[:10]}\n"
        f"  {parent}, run {model.run}, round {model.round}\n"
        f"  carries {', '.join(model.clients) or 'nobody'}"
    )


def _heads(path: Path) -> tuple[Path, list[Head], list[Path]]:
    """Return a ledger's file, the heads that are known beside it, and receipts that do not hold."""
    folder = path if path.is_dir() else path.parent
    file, journal = (folder / "ledger.sqlite" if path.is_dir() else path), folder / "journal.sqlite"
    if path.is_dir() and not journal.is_file():
        if (path / "federation.json").is_file():
            Home(path).check_journal()
        raise ConfigError(f"{path} is no federation's home: give one, or a ledger's file")
    if not journal.is_file() or file.name != "ledger.sqlite":
        return file, [], []
    with Journal(journal, read_only=True) as opened:
        kept = opened.ledger_head()
    heads, broken = consistency.receipt_heads(Home(folder))
    return file, [head for head in (kept, *heads) if head is not None], broken


def _agrees(file: Path) -> bool:
    """Raise if a ledger in its home contradicts what lies beside it; False: it is in none."""
    home = Home(file.parent)
    if file != home.ledger or not (home.path / "federation.json").is_file():
        return False
    home.check_journal()
    with (
        Journal(home.journal, read_only=True) as journal,
        ledger.Ledger(file, read_only=True) as opened,
        ModelRegistry(home.registry, read_only=True) as registry,
    ):
        consistency.check(home, journal, opened, registry)
    return True


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

    if model.exists() and not model.is_file():
        raise ConfigError(f"{model} is not a regular file")  # a pipe may hang
    return states.digest(states.load(model)[0])
