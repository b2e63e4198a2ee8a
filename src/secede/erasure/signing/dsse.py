"""Signed bytes in DSSE envelopes (https://github.com/secure-systems-lab/dsse), in canonical form.

The bytes must be the canonical JSON of the envelope, with signatures ordered by key, and every
signature must be valid and of a known key. So each changed byte is found, and each added or spoilt
signature. A removed countersignature cannot be found: look at who signed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, StringConstraints
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import UnverifiedSignatureError, VerificationError

from secede.erasure.canonical_json import parse_document, to_canonical
from secede.erasure.signing.keys import PrivateKey, PublicKey
from secede.erasure.types import Digest, Document
from secede.errors import TrustError
from secede.text import short_digest

MAX_ENVELOPE_BYTES = 1 << 20
_MAX_SIGNATURES = 16
_TYPE_NAMES = {
    "application/vnd.secede.erasure-request+json": "a request",
    "application/vnd.secede.erasure-acknowledgement+json": "an acknowledgement",
    "application/vnd.in-toto+json": "a receipt",
}
_Base64 = Annotated[
    str, StringConstraints(max_length=MAX_ENVELOPE_BYTES, pattern=r"^[A-Za-z0-9+/]*={0,2}$")
]
_Type = Annotated[str, StringConstraints(max_length=128, pattern=r"^[!-~]+$")]


class _Signature(Document):
    keyid: Digest
    sig: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9+/]{86}==$")]  # 64 bytes


class _Fields(Document):
    payload: _Base64
    payloadType: _Type  # noqa: N815  DSSE's spelling
    signatures: Annotated[list[_Signature], Field(min_length=1, max_length=_MAX_SIGNATURES)]


ENVELOPE_FIELDS = frozenset(_Fields.model_fields)


def sign(payload: bytes, payload_type: str, *keys: PrivateKey) -> bytes:
    """Return `payload` in an envelope signed with each of `keys`."""
    if not keys:
        raise TrustError("an envelope needs at least one key to sign it")
    envelope = Envelope(payload, payload_type, {})
    for key in keys:
        envelope.sign(key)
    return _checked(_write(envelope))


def countersign(data: bytes, key: PrivateKey) -> bytes:
    """Return the envelope with one more signature; the others are kept and not verified."""
    envelope = _read(data, MAX_ENVELOPE_BYTES)
    if key.public_key.keyid in envelope.signatures:
        raise TrustError(
            f"the envelope is signed by key {short_digest(key.public_key.keyid)} already"
        )
    envelope.sign(key)
    return _checked(_write(envelope))


def keep_signature(data: bytes, key: PublicKey) -> bytes:
    """Return the envelope with the signature of one key alone, for those who know that key only."""
    envelope = _read(data, MAX_ENVELOPE_BYTES)
    signatures = {key.keyid: envelope.signatures[key.keyid]}
    return _write(Envelope(envelope.payload, envelope.payload_type, signatures))


def verify(
    data: bytes,
    payload_type: str,
    keys: Mapping[str, PublicKey],
    *,
    limit: int = MAX_ENVELOPE_BYTES,
) -> tuple[bytes, tuple[str, ...]]:
    """Return the payload and the sorted names of its signers; TrustError if it is not valid.

    Every signature must be valid, so `keys` needs the keys of all signers.
    """
    envelope = _read_type(data, payload_type, limit)
    return envelope.payload, tuple(sorted(_signers(envelope, keys)))


def unverified_payload(data: bytes, payload_type: str, *, limit: int = MAX_ENVELOPE_BYTES) -> bytes:
    """Return the payload without verifying it: to learn whose key to verify it with."""
    return _read_type(data, payload_type, limit).payload


def payload_type(data: bytes, *, limit: int = MAX_ENVELOPE_BYTES) -> str:
    """Return the type of the payload, without verifying it."""
    return str(_read(data, limit).payload_type)


def key_ids(data: bytes, *, limit: int = MAX_ENVELOPE_BYTES) -> frozenset[str]:
    """Return the ids of the keys that the envelope says it is signed with; none is verified."""
    return frozenset(_read(data, limit).signatures)


def _read_type(data: bytes, payload_type: str, limit: int) -> Envelope:
    envelope = _read(data, limit)
    if envelope.payload_type != payload_type:
        actual, expected = _type_name(envelope.payload_type), _type_name(payload_type)
        raise TrustError(f"this is {actual}, not {expected}")
    return envelope


def _type_name(payload_type: str) -> str:
    return _TYPE_NAMES.get(payload_type, f"an envelope of {payload_type!r}")


def _signers(envelope: Envelope, keys: Mapping[str, PublicKey]) -> list[str]:
    names: dict[str, str] = {}
    for name, key in keys.items():
        if names.setdefault(key.keyid, name) != name:
            raise TrustError(
                f"{names[key.keyid]!r} and {name!r} have the same public key: each needs its own"
            )
    message, signers = envelope.pae(), []
    for identity, signature in envelope.signatures.items():
        if identity not in names:
            raise TrustError(
                f"the envelope is signed by the unknown key {short_digest(identity)}: "
                "it is forged, or that public key is missing"
            )
        try:
            keys[names[identity]].verify_signature(signature, message)
        except (UnverifiedSignatureError, VerificationError):
            raise TrustError(
                f"the signature of {names[identity]!r} is not valid: the content was changed, "
                "or somebody else signed it"
            ) from None
        signers.append(names[identity])
    return signers


def _read(data: bytes, limit: int) -> Envelope:
    fields = parse_document(_Fields, data, limit, "a DSSE envelope")
    try:
        envelope = Envelope.from_dict(fields.model_dump())
    except ValueError as error:
        reason = "a key signed twice" if "Multiple" in str(error) else "base64 is damaged"
        raise TrustError(f"not a DSSE envelope: {reason}") from None
    if _write(envelope) != data:
        raise TrustError(
            "the envelope is not canonical JSON as it was signed: it was changed afterwards"
        )
    return envelope


def _write(envelope: Envelope) -> bytes:
    content: dict[str, Any] = envelope.to_dict()
    content["signatures"].sort(key=lambda signature: signature["keyid"])
    return to_canonical(content)


def _checked(data: bytes) -> bytes:
    _read(data, MAX_ENVELOPE_BYTES)  # what is written must be readable within the limits
    return data
