"""The client's signature of what its canaries say: made at the client, checked by anybody."""

from __future__ import annotations

from secede.erasure.canonical_json import parse_document, to_canonical
from secede.erasure.documents.canary_reading import (
    MAX_READING_BYTES,
    CanaryReading,
    SignedReading,
)
from secede.erasure.signing import dsse
from secede.erasure.signing.keys import PrivateKey, PublicKey
from secede.errors import TrustError

READING_TYPE = "application/vnd.secede.canary-reading+json"


def sign_reading(reading: CanaryReading, key: PrivateKey | None) -> SignedReading:
    """Return the reading with its client's signature; without one if it has no key."""
    if key is None:
        return SignedReading(reading=reading)
    envelope = dsse.sign(to_canonical(reading.model_dump(mode="json")), READING_TYPE, key)
    return SignedReading(reading=reading, envelope=envelope.decode())


def check_reading(signed: SignedReading, key: PublicKey | None) -> None:
    """Raise TrustError unless what was signed is what is stated, and by this key if it is known."""
    if signed.envelope is None:
        return
    data, limit = signed.envelope.encode(), MAX_READING_BYTES
    if key is None:
        payload = dsse.unverified_payload(data, READING_TYPE, limit=limit)
    else:
        payload, _ = dsse.verify(data, READING_TYPE, {"client": key}, limit=limit)
    stated = parse_document(CanaryReading, payload, limit, "a reading of canaries")
    if stated != signed.reading:
        raise TrustError("the client signed another reading of its canaries than is stated")
