"""Signed bytes: DSSE envelopes, written in exactly one way.

The file must be byte for byte the canonical JSON of its content, with signatures ordered by key,
and every signature in it must be of a known key and hold. So each changed byte is found, and also
each added or spoilt signature. What cannot be seen is that a countersignature was taken away:
ask for it by `threshold`, or look at who signed. https://github.com/secure-systems-lab/dsse
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, StringConstraints, ValidationError
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import UnverifiedSignatureError, VerificationError

from secede.erasure.canonical_json import parse, to_canonical
from secede.erasure.signing.keys import PrivateKey, PublicKey, key_id
from secede.erasure.types import Digest, Document, describe_errors
from secede.errors import TrustError
from secede.text import short_digest

MAX_ENVELOPE_BYTES = 1 << 20  # bytes of an envelope
_MOST_SIGNATURES = 16
_KINDS = {
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


class _Form(Document):
    payload: _Base64
    payloadType: _Type  # noqa: N815  DSSE's spelling
    signatures: Annotated[list[_Signature], Field(min_length=1, max_length=_MOST_SIGNATURES)]


FIELDS = frozenset(_Form.model_fields)


def sign(payload: bytes, payload_type: str, *keys: PrivateKey) -> bytes:
    """Return `payload` in an envelope signed with each of `keys`."""
    if not keys:
        raise TrustError("an envelope needs at least one key to sign it")
    envelope = Envelope(payload, payload_type, {})
    for key in keys:
        envelope.sign(key)
    return _checked(_write(envelope))


def countersign(data: bytes, key: PrivateKey) -> bytes:
    """Return the envelope with one more signature; those in it are kept and not verified here."""
    envelope = _read(data, MAX_ENVELOPE_BYTES)
    if key_id(key.public_key) in envelope.signatures:
        raise TrustError(
            f"the envelope is signed by key {short_digest(key.public_key.keyid)} already"
        )
    envelope.sign(key)
    return _checked(_write(envelope))


def verify(
    data: bytes,
    payload_type: str,
    keys: Mapping[str, PublicKey],
    *,
    threshold: int = 1,
    limit: int = MAX_ENVELOPE_BYTES,
) -> tuple[bytes, tuple[str, ...]]:
    """Return the payload and the names of all who signed it, sorted; anything else raises.

    Every signature must hold, so `keys` has to know everybody who signed, not only `threshold`.
    """
    if threshold < 1:
        raise ValueError(f"threshold must be at least 1, got {threshold}")
    envelope = _open(data, payload_type, limit)
    signed = sorted(_signers(envelope, keys))
    if len(signed) < threshold:
        raise TrustError(
            f"the envelope is signed by {len(signed)} ({', '.join(signed)}), "
            f"expected at least {threshold} signatures"
        )
    return envelope.payload, tuple(signed)


def unverified(data: bytes, payload_type: str, *, limit: int = MAX_ENVELOPE_BYTES) -> bytes:
    """Return the payload without looking at signatures: to learn whose key to verify with."""
    return _open(data, payload_type, limit).payload


def kind(data: bytes, *, limit: int = MAX_ENVELOPE_BYTES) -> str:
    """Return the type of what an envelope holds, without looking at signatures."""
    return str(_read(data, limit).payload_type)


def key_ids(data: bytes, *, limit: int = MAX_ENVELOPE_BYTES) -> frozenset[str]:
    """Return the ids of the keys that an envelope says it is signed with; none is verified."""
    return frozenset(_read(data, limit).signatures)


def _open(data: bytes, payload_type: str, limit: int) -> Envelope:
    envelope = _read(data, limit)
    if envelope.payload_type != payload_type:
        raise TrustError(f"this is {_words(envelope.payload_type)}, not {_words(payload_type)}")
    return envelope


def _words(payload_type: str) -> str:
    return _KINDS.get(payload_type, f"an envelope of {payload_type!r}")


def _signers(envelope: Envelope, keys: Mapping[str, PublicKey]) -> list[str]:
    names: dict[str, str] = {}
    for name, key in keys.items():
        if names.setdefault(key_id(key), name) != name:
            raise TrustError(
                f"{names[key_id(key)]!r} and {name!r} have the same public key: each needs its own"
            )
    message, signed = envelope.pae(), []
    for identity, signature in envelope.signatures.items():
        if identity not in names:
            raise TrustError(
                f"the envelope is signed by key {short_digest(identity)}, which is not known here: "
                "it is forged, or that public key is missing"
            )
        try:
            keys[names[identity]].verify_signature(signature, message)
        except (UnverifiedSignatureError, VerificationError):
            raise TrustError(
                f"the signature of {names[identity]!r} does not hold: the content was changed, "
                "or somebody else signed it"
            ) from None
        signed.append(names[identity])
    return signed


def _read(data: bytes, limit: int) -> Envelope:
    found = parse(data, limit)
    try:
        form = _Form.model_validate(found)
    except ValidationError as error:
        raise TrustError(f"not a DSSE envelope: {describe_errors(error)}") from None
    try:
        envelope = Envelope.from_dict(form.model_dump())
    except ValueError as error:
        reason = "a key signed twice" if "Multiple" in str(error) else "base64 is damaged"
        raise TrustError(f"not a DSSE envelope: {reason}") from None
    if _write(envelope) != data:
        raise TrustError(
            "the envelope is not written in its one canonical form: it was changed after signing"
        )
    return envelope


def _write(envelope: Envelope) -> bytes:
    content: dict[str, Any] = envelope.to_dict()
    content["signatures"].sort(key=lambda signature: signature["keyid"])
    return to_canonical(content)


def _checked(data: bytes) -> bytes:
    _read(data, MAX_ENVELOPE_BYTES)  # what is written can be read again, within the limits
    return data
