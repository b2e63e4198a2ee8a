"""What a client gets for its request: the server's signed word that it came, and by when it is due.

It is signed anew when the date is put off, and when the request ends without an erasure, with the
reason (GDPR Art. 12(3) and (4)); an erasure ends in a receipt instead. An envelope as of requests
and receipts. The client keeps it; it needs nothing but the server's public key to be checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import ValidationError

from secede.erasure.canonical_json import parse, to_canonical
from secede.erasure.documents import request as deadline
from secede.erasure.signing import dsse
from secede.erasure.signing.keys import PrivateKey, PublicKey
from secede.erasure.storage import progress as courses
from secede.erasure.storage.journal_entries import Entry, Transition
from secede.erasure.types import (
    Digest,
    Document,
    Name,
    Text,
    Timestamp,
    describe_errors,
    format_time,
)
from secede.errors import TrustError
from secede.text import printable

PAYLOAD_TYPE = "application/vnd.secede.erasure-acknowledgement+json"
LIMIT = 16_384  # bytes; one takes about 700
REMEDIES = (
    "The client may lodge a complaint with a supervisory authority and seek a judicial remedy "
    "(GDPR Art. 12(4))."
)
_LONGEST = 300  # characters of a reason


class Ended(Document):
    """That a request ended and nothing was erased."""

    state: Literal["refused", "rolled-back"]
    at: Timestamp
    reason: Text
    remedies: Text = REMEDIES


class Acknowledgement(Document):
    """That a request came, by when it will be answered, and if it ended without an erasure."""

    version: Literal[2] = 2
    request: Digest
    federation: Name
    client: Name
    received: Timestamp
    due: Timestamp
    extended_to: Timestamp | None
    reason: Text | None  # for putting it off
    ended: Ended | None


def of(entry: Entry, federation: str, last: Transition) -> Acknowledgement:
    """Return what is said about a request that was accepted."""
    return Acknowledgement(
        request=entry.digest,
        federation=federation,
        client=entry.client,
        received=format_time(entry.received),
        due=format_time(deadline.due_date(entry.received)),
        extended_to=format_time(entry.due) if entry.extended else None,
        reason=entry.reason,
        ended=_ended(last),
    )


def _ended(last: Transition) -> Ended | None:
    if last.state not in (courses.REFUSED, courses.ROLLED_BACK):
        return None
    reason = printable(last.details["reason"])
    return Ended.model_validate(
        {"state": last.state, "at": format_time(last.at), "reason": reason[:_LONGEST]}
    )


def sign(told: Acknowledgement, key: PrivateKey) -> bytes:
    """Return it signed by the server."""
    return dsse.sign(to_canonical(told.model_dump()), PAYLOAD_TYPE, key)


def verify(
    data: bytes, keys: Mapping[str, PublicKey], *, server: str = "server"
) -> Acknowledgement:
    """Return what the server said; anything that it did not sign raises TrustError."""
    if server not in keys:
        raise TrustError(f"no public key of the server {server!r}")
    payload, _ = dsse.verify(data, PAYLOAD_TYPE, {server: keys[server]}, limit=LIMIT)
    parse(payload, LIMIT)
    try:
        return Acknowledgement.model_validate_json(payload)
    except ValidationError as error:
        raise TrustError(f"not an acknowledgement: {describe_errors(error)}") from None
