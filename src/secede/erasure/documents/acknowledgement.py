"""The server's signed acknowledgement of a request: when it came, and when it is due.

The server signs it anew when the due date is extended, and when the request ends without an
erasure, with the reason (GDPR Art. 12(3) and (4)); an erasure ends in a receipt instead. The client
keeps it and checks it with the server's public key alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import ValidationError

from secede.erasure.canonical_json import parse_json, to_canonical
from secede.erasure.signing import dsse
from secede.erasure.signing.keys import SERVER, PrivateKey, PublicKey
from secede.erasure.types import Digest, Document, Name, Text, Timestamp, describe_errors
from secede.errors import TrustError

ACKNOWLEDGEMENT_TYPE = "application/vnd.secede.erasure-acknowledgement+json"
MAX_ACKNOWLEDGEMENT_BYTES = 16_384  # signed; one takes about 700
REMEDIES = (
    "The client may lodge a complaint with a supervisory authority and seek a judicial remedy "
    "(GDPR Art. 12(4))."
)


class Ended(Document):
    """When and why a request ended without an erasure."""

    state: Literal["refused", "rolled-back"]
    at: Timestamp
    reason: Text
    remedies: Text = REMEDIES


class Acknowledgement(Document):
    """When a request came, when it is due, and how it ended if nothing was erased."""

    version: Literal[1] = 1
    request: Digest
    federation: Name
    client: Name
    received: Timestamp
    due: Timestamp
    extended_to: Timestamp | None
    reason: Text | None  # for the extension
    ended: Ended | None


def sign_acknowledgement(acknowledgement: Acknowledgement, key: PrivateKey) -> bytes:
    """Return the acknowledgement, signed by the server."""
    return dsse.sign(to_canonical(acknowledgement.model_dump()), ACKNOWLEDGEMENT_TYPE, key)


def verify_acknowledgement(
    data: bytes, keys: Mapping[str, PublicKey], *, server: str = SERVER
) -> Acknowledgement:
    """Return the acknowledgement if the server signed it; TrustError otherwise."""
    if server not in keys:
        raise TrustError(f"no public key of the server {server!r}")
    key = {server: keys[server]}
    payload, _ = dsse.verify(data, ACKNOWLEDGEMENT_TYPE, key, limit=MAX_ACKNOWLEDGEMENT_BYTES)
    try:
        return Acknowledgement.model_validate(parse_json(payload, MAX_ACKNOWLEDGEMENT_BYTES))
    except ValidationError as error:
        raise TrustError(f"not an acknowledgement: {describe_errors(error)}") from None
