"""`secede verify` and `secede countersign`: receipts, with files and public keys alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from secede.cli.shared import Auditors, Json, Keys, ServerName, naming, print_json
from secede.errors import ConfigError, TrustError

if TYPE_CHECKING:
    from secede.erasure import Acknowledgement, CanaryRow, MethodPart, Predicate, Signers, Verified


def verify(
    receipts: Annotated[
        list[Path], typer.Argument(help="Receipts, or acknowledgements of requests.")
    ],
    keys: Keys = Path("keys"),
    model: Annotated[
        Path | None, typer.Option(help="Compare with the erased model's safetensors file.")
    ] = None,
    ledger: Annotated[
        Path | None, typer.Option(help="Compare with the ledger, or its export.")
    ] = None,
    server: ServerName = "server",
    auditor: Auditors = None,
    client: Annotated[
        str | None, typer.Option(help="Require that it is about this client.")
    ] = None,
    federation: Annotated[
        str | None, typer.Option(help="Require that it is about this federation.")
    ] = None,
    request: Annotated[
        str | None,
        typer.Option(help="Require that it is about this request: its digest, or its file."),
    ] = None,
    countersigned_by: Annotated[
        list[str] | None,
        typer.Option("--countersigned-by", help="Require this signature too. Repeatable."),
    ] = None,
    page: Annotated[
        bool, typer.Option("--page", help="Write the receipt's HTML page beside it.")
    ] = False,
    json: Json = False,
) -> None:
    """Verify receipts of erasures, offline.

    Public keys are enough. The server must have signed the receipt; only the client that left and
    auditors, whose keys are in KEYS/auditors, may have signed it too. Any altered byte is found.

    Names are not compared with anything unless you say them: give --client, --federation and
    --request to be sure that a receipt is about yours.

    Example: secede verify receipt.json --keys keys --ledger ledger.sqlite

    Another: secede verify receipt.json --keys keys --client site-3 --request request.json
    """
    from secede.erasure import (
        ACKNOWLEDGEMENT_TYPE,
        MAX_RECEIPT_BYTES,
        Signers,
        payload_type,
        read_bounded,
        verify_acknowledgement,
        verify_receipt,
        write_page,
    )

    if len(receipts) > 1 and (json or model is not None):
        raise ConfigError("--json and --model are for one receipt at a time")
    signers = Signers.load(keys, auditor or ())
    asked = None if request is None else _request_digest(request)
    expected = {"client": client, "federation": federation, "request": asked}
    for path in receipts:
        data = read_bounded(path, MAX_RECEIPT_BYTES)
        with naming(path):
            if payload_type(data, limit=MAX_RECEIPT_BYTES) == ACKNOWLEDGEMENT_TYPE:
                if model or ledger or countersigned_by or page:
                    raise ConfigError(f"{path} is an acknowledgement: only receipts are compared")
                acknowledged = verify_acknowledgement(data, signers.keys, server=server)
                _check_about(expected, acknowledged.model_dump())
                _print_acknowledgement(path, acknowledged, as_json=json)
                continue
            verified = verify_receipt(
                data,
                signers.keys,
                auditors=signers.auditors,
                model_digest=None if model is None else model_digest(model),
                ledger=ledger,
                server=server,
                countersigned_by=countersigned_by or (),
            )
            about = verified.statement.predicate.request
            _check_about(expected, {**about.model_dump(), "request": about.digest})
        written = write_page(verified, path) if page else None
        if json:
            print_json(_as_json(verified, written))
            continue
        _print_receipt(path, verified, signers.keys[verified.server].keyid)
        if written is not None:
            print(f"page       {written}")


def countersign(
    receipts: Annotated[list[Path], typer.Argument(help="Receipts; each is replaced.")],
    key: Annotated[Path, typer.Option(help="Your private key.")],
    keys: Keys = Path("keys"),
    server: ServerName = "server",
    auditor: Auditors = None,
    json: Json = False,
) -> None:
    """Add your signature to receipts, as the leaver or an auditor.

    You are the client that left, or your public key is among the auditors'. The receipt is verified
    before and after; nothing is written unless it is valid. Its page is written again.

    Example: secede countersign receipt.json --key auditor.key --keys keys
    """
    from secede import files
    from secede.erasure import (
        MAX_RECEIPT_BYTES,
        Signers,
        countersign_receipt,
        load_private_key,
        read_bounded,
        verify_receipt,
        write_page,
    )

    signers, private = Signers.load(keys, auditor or ()), load_private_key(key)
    check = partial(verify_receipt, keys=signers.keys, auditors=signers.auditors, server=server)
    for path in receipts:
        # Another may be countersigning it too.
        with files.lock_folder(path.parent), files.private():
            data = read_bounded(path, MAX_RECEIPT_BYTES)
            with naming(path):
                _check_entitled(key, private.public_key.keyid, signers, check(data))
                signed = countersign_receipt(data, private)
                verified = check(signed)
            files.write_bytes(path, signed)
            page = write_page(verified, path)
        names = list(verified.countersigned_by)
        if json:
            print_json({"receipt": str(path), "page": str(page), "countersigned_by": names})
            continue
        print(f"{path}: countersigned by {', '.join(names)}")
        print(f"{page}: written again")


def model_digest(path: Path) -> str:
    """Return the digest of a model in a safetensors file."""
    from secede.erasure import model_file_digest

    if path.exists() and not path.is_file():
        raise ConfigError(f"{path} is not a regular file")  # a pipe may hang
    return model_file_digest(path)


def _request_digest(text: str) -> str:
    """Return the digest of a request that is given as one, or as its file."""
    from secede.erasure import MAX_REQUEST_BYTES, read_bounded, unverified_request

    if re.fullmatch("[0-9a-f]{64}", text):
        return text
    path = Path(text)
    if not path.exists():
        raise ConfigError(
            f"no request {text!r}: expected a digest of 64 hexadecimal digits or the request's file"
        )
    with naming(path):
        return unverified_request(read_bounded(path, MAX_REQUEST_BYTES)).digest()


def _check_about(expected: Mapping[str, str | None], said: Mapping[str, object]) -> None:
    """Raise unless a paper is about the client, federation and request that are expected."""
    for name, value in expected.items():
        if value is not None and said[name] != value:
            raise TrustError(f"it is about {name} {said[name]}, expected {value}")


def _check_entitled(path: Path, identity: str, signers: Signers, verified: Verified) -> None:
    """Raise unless this key may countersign the receipt."""
    client = verified.statement.predicate.request.client
    for name, public in signers.keys.items():
        if public.keyid == identity and name != client:
            raise TrustError(
                f"{path} is the key of {name!r}, who is neither {client!r}, the client that left, "
                "nor an auditor: nothing is signed"
            )


def _print_acknowledgement(path: Path, document: Acknowledgement, *, as_json: bool) -> None:
    """Print an acknowledgement: received, due, outcome."""
    if as_json:
        print_json({"verified": True, "acknowledgement": document.model_dump(mode="json")})
        return
    print(f"{path}: signature valid")
    print(f"client     {document.client}, federation {document.federation}")
    print(f"request    {document.request}")
    print(f"received   {document.received[:10]}, due {document.due[:10]}")
    if document.extended_to is not None:
        print(f"extended   to {document.extended_to[:10]}: {document.reason}")
    if document.ended is not None:
        ended = document.ended
        print(f"ended      {ended.at[:10]}, {ended.state}: {ended.reason}")
        print(ended.remedies)


def _print_receipt(path: Path, verified: Verified, key_id: str) -> None:
    from secede.erasure import STANDING_LIMITS, canary_rows, describe_duration

    receipt = verified.statement.predicate
    countersigned = ", ".join(verified.countersigned_by)
    ledger = "not compared; give --ledger FILE"
    if verified.ledger is not None:
        ledger = f"valid up to row {verified.ledger.number:,}; agrees with the receipt"
    lines = {
        "signed by": verified.server,
        "key id": key_id,
        "countersigned by": countersigned or "nobody",
        "client": f"{receipt.request.client}, federation {receipt.request.federation}",
        "completed": f"{receipt.request.completed[:10]}, {describe_duration(receipt.request)}",
        "method": _method(receipt.method),
        "forgotten": _forgotten(receipt),
        "canaries": _canaries(verified),
        "useful": receipt.verification.useful,
        "model": "matches" if verified.model_checked else "not compared; give --model FILE",
        "ledger": ledger,
    }
    print(f"{path}: signature valid")
    for name, value in lines.items():
        print(f"{name:<16}  {value}")
        if name == "canaries":
            for row in canary_rows(receipt):
                print(f"{'':<16}  {_reading(row)}")
    print(STANDING_LIMITS[0])


def _forgotten(receipt: Predicate) -> str:
    return f"{receipt.verification.forgotten.replace('-', ' ')}: {_reason(receipt)}"


def _reason(receipt: Predicate) -> str:
    verification = receipt.verification
    if verification.forgotten == "by-construction":
        return "trained from scratch without the client"
    reason = verification.canaries.judgement(receipt.models.after).reason
    return reason.removeprefix("Undetermined: ")


def _numbers(receipt: Predicate) -> dict[str, object]:
    """Return what the counts say, computed again by the rule that the plan had."""
    from secede.erasure import canary_rows

    canaries, planted = receipt.verification.canaries, receipt.scope.canaries
    return {
        "planted": planted and planted.model_dump(mode="json"),
        "rule": canaries.rule.model_dump(),
        "judgement": asdict(canaries.judgement(receipt.models.after)),
        "readings": [asdict(row) for row in canary_rows(receipt)],
    }


def _canaries(verified: Verified) -> str:
    """Say how many canaries the client committed to, and whether it signed what it read."""
    from secede.text import plural

    receipt = verified.statement.predicate
    planted, canaries = receipt.scope.canaries, receipt.verification.canaries
    if planted is None:
        return "none were planted"
    count = planted.commitment.samples
    said = f"{plural(count, 'canary', 'canaries')}, root {planted.commitment.root}"
    readings = len(canaries.signed_readings)
    if not readings:
        return f"{said}; not read: {canaries.absent}"
    read = plural(readings, "reading")
    return f"{said}; {read}, {_signed(verified)}"


def _signed(verified: Verified) -> str:
    """Say whether the client signed its readings, and with which key that was compared."""
    if verified.readings_signed:
        return f"signed by the client, key {verified.leaver_key}"
    if verified.leaver_key is None:
        return "not compared with the client's key: it is not among the keys"
    return "not all signed by the client"


def _reading(row: CanaryRow) -> str:
    """Say one reading in a line."""
    from secede.audit import shown_p

    bound = ""
    if row.win_bound is not None:
        bound = f", at most {100 * row.win_bound:.1f} % in the long run"
    return (
        f"{row.when}: p {shown_p(row.p_value)}, mean rank {row.mean_rank:.2f} (chance "
        f"{row.chance_mean:.2f}), wins {row.wins} of {row.count}{bound}"
        f"{'' if row.signed else ', unsigned'}"
    )


def _method(method: MethodPart) -> str:
    from secede.text import plural

    after = "" if method.rung == "retraining" else " after it"
    return f"{method.name} ({method.rung}), {plural(method.rounds, 'round')}{after}"


def _as_json(verified: Verified, page: Path | None) -> dict[str, object]:
    receipt = verified.statement.predicate
    readings = receipt.verification.canaries.signed_readings
    return {
        "verified": True,
        "receipt": verified.digest,
        "server": verified.server,
        "countersigned_by": list(verified.countersigned_by),
        "model_checked": verified.model_checked,
        "ledger": verified.ledger and verified.ledger.model_dump(),
        "forgotten": {
            "verdict": receipt.verification.forgotten,
            "reason": _reason(receipt),
            "readings_signed": verified.readings_signed if readings else None,
            "canaries": _numbers(receipt),
        },
        "page": page and str(page),
        "statement": verified.statement.model_dump(mode="json", by_alias=True),
    }
