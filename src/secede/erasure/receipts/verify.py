"""The receipt of an erasure: a statement in a DSSE envelope, signed by the server.

The leaver or an auditor countersigns it. Anybody who has the public keys verifies it offline,
with the model's digest and the ledger beside it where they have those. Nobody else's signature
counts: one of another client is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from secede.erasure.canonical_json import parse
from secede.erasure.documents.chain import Head
from secede.erasure.documents.receipt import (
    LIMITS,
    Computed,
    Costs,
    Destroyed,
    MethodPart,
    Models,
    Predicate,
    Remaining,
    RequestPart,
    Scope,
)
from secede.erasure.documents.scores import Verification
from secede.erasure.documents.statement import Sha256, Statement, Subject
from secede.erasure.receipts import against
from secede.erasure.signing import dsse
from secede.erasure.signing.keys import PrivateKey, PublicKey
from secede.erasure.types import faults
from secede.errors import TrustError

PAYLOAD_TYPE = "application/vnd.in-toto+json"
LIMIT = 256 * 1024  # bytes of a signed receipt; one takes about 10,000
SERVER = "server"


@dataclass(frozen=True, kw_only=True)
class Verified:
    """A receipt that holds, who signed it, and what it was compared with."""

    statement: Statement
    digest: str  # of what was signed
    server: str
    countersigned_by: tuple[str, ...]
    model_checked: bool
    ledger: Head | None  # how far the ledger goes that it was compared with


def build(
    *,
    request: RequestPart,
    scope: Scope,
    method: MethodPart,
    software: Iterable[Computed],
    models: Models,
    destroyed: Iterable[Destroyed],
    remaining: Iterable[Remaining],
    costs: Costs,
    verification: Verification,
    ledger: Head,
    further_limits: Iterable[str] = (),
) -> Statement:
    """Return the statement; parts that contradict each other are refused."""
    try:
        predicate = Predicate(
            request=request,
            scope=scope,
            method=method,
            software=tuple(software),
            models=models,
            destroyed=tuple(destroyed),
            remaining=tuple(remaining),
            costs=costs,
            verification=verification,
            ledger=ledger,
            limits=(*LIMITS, *further_limits),
        )
        subject = Subject(digest=Sha256(sha256=models.after))
        return Statement(subject=(subject,), predicate=predicate)
    except ValidationError as error:
        raise TrustError(f"a receipt cannot be made of this: {faults(error)}") from error


def sign(statement: Statement, server_key: PrivateKey) -> bytes:
    """Return the receipt, signed by the server."""
    return dsse.sign(statement.payload(), PAYLOAD_TYPE, server_key)


def countersign(data: bytes, key: PrivateKey) -> bytes:
    """Return the receipt with one more signature; `verify` says whether that one counts."""
    read(dsse.unverified(data, PAYLOAD_TYPE, limit=LIMIT))
    return dsse.countersign(data, key)


def verify(
    data: bytes,
    keys: Mapping[str, PublicKey],
    *,
    auditors: Mapping[str, PublicKey] | None = None,
    model_digest: str | None = None,
    ledger: Path | None = None,
    server: str = SERVER,
    countersigned_by: Collection[str] = (),
) -> Verified:
    """Return the receipt if the server signed it, and nobody but the leaver and `auditors` too.

    With `model_digest`, the model must be the one that it is about; with `ledger`, that one must
    be whole and say the same. All whom `countersigned_by` names must have signed it.
    """
    if server not in keys:
        raise TrustError(f"no public key of the server {server!r} among {_list(keys)}")
    auditors = auditors or {}
    if both := auditors.keys() & keys.keys():
        raise TrustError(f"{min(both)!r} is a client or the server, and an auditor: which one?")
    known = {**auditors, **keys}
    payload, signers = dsse.verify(data, PAYLOAD_TYPE, known, limit=LIMIT)
    others = tuple(name for name in signers if name != server)
    if server not in signers:
        raise TrustError(f"the receipt is signed by {_list(signers)}, not by the server {server!r}")
    statement, digest = read(payload), hashlib.sha256(payload).hexdigest()
    entitled = {statement.predicate.request.client, *auditors}
    if strangers := set(others) - entitled:
        raise TrustError(
            f"{min(strangers)!r} signed the receipt too, who is neither the client that left nor "
            "an auditor here: its signature counts for nothing and must not be there"
        )
    if missing := set(countersigned_by) - set(others):
        raise TrustError(
            f"the receipt is not countersigned by {_list(sorted(missing))}, but by {_list(others)}"
        )
    if model_digest is not None:
        _check_model(statement.predicate.models, model_digest)
    return Verified(
        statement=statement,
        digest=digest,
        server=server,
        countersigned_by=others,
        model_checked=model_digest is not None,
        ledger=None if ledger is None else against.check(statement.predicate, digest, ledger),
    )


def unverified(data: bytes) -> Statement:
    """Return what a receipt says, without looking at its signatures."""
    return read(dsse.unverified(data, PAYLOAD_TYPE, limit=LIMIT))


def read(payload: bytes) -> Statement:
    """Return the statement in an envelope's payload; nothing is said about who signed it."""
    parse(payload, LIMIT)
    try:
        statement = Statement.model_validate_json(payload)
    except ValidationError as error:
        raise TrustError(f"not a receipt of an erasure: {faults(error)}") from None
    if statement.payload() != payload:
        raise TrustError("the receipt is not written in its one canonical form")
    return statement


def _check_model(models: Models, found: str) -> None:
    if found == models.before:
        raise TrustError("this is the model from before the erasure, not the erased one")
    if found != models.after:
        raise TrustError(
            f"the receipt is about model {models.after[:12]}…, this one is {found[:12]}…: "
            "it is another model, or it was altered"
        )


def _list(names: Iterable[str]) -> str:
    return ", ".join(names) or "nobody"
