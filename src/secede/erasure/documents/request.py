"""A signed request for erasure, its acknowledgement, and the dates by which it must be answered.

A request names institutions, not people, and is signed with the client's own key. The nonce makes
two requests of the same second differ; it is never shown.

The server signs the acknowledgement: when the request came, and when it is due. It is signed anew
when the due date is extended, and when the request ends without an erasure, with the reason (GDPR
Art. 12(3) and (4)); an erasure ends in a receipt instead. The client keeps it and checks it with
the server's public key alone.
"""

from __future__ import annotations

import calendar
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal, get_args

from pydantic import Field, ValidationError, model_validator

from secede.erasure.canonical_json import digest, parse_document, to_canonical
from secede.erasure.signing import dsse
from secede.erasure.signing.keys import SERVER, PrivateKey, PublicKey
from secede.erasure.types import (
    Digest,
    Document,
    Name,
    Text,
    Timestamp,
    Trigger,
    describe_errors,
    format_time,
    parse_time,
)
from secede.errors import ConfigError, RequestError, TrustError, did_you_mean

REQUEST_TYPE = "application/vnd.secede.erasure-request+json"
MAX_REQUEST_BYTES = 16_384  # signed; one takes about 800
LIFETIME = timedelta(days=7)
MAX_LIFETIME = timedelta(days=31)  # between issued and expires
CLOCK_SKEW = timedelta(minutes=5)  # a client's clock may be ahead of the server's by this much
MONTHS = 1  # to answer a request (GDPR Art. 12(3))
MAX_FURTHER_MONTHS = 2  # by which that may be extended
ACKNOWLEDGEMENT_TYPE = "application/vnd.secede.erasure-acknowledgement+json"
MAX_ACKNOWLEDGEMENT_BYTES = 16_384  # signed; one takes about 700
REMEDIES = (
    "The client may lodge a complaint with a supervisory authority and seek a judicial remedy "
    "(GDPR Art. 12(4))."
)

TRIGGERS: tuple[str, ...] = get_args(Trigger)


class Request(Document):
    """The request that a leaver signs."""

    version: Literal[1] = 1
    federation: Name
    client: Name
    trigger: Trigger
    model: Digest  # of the model that is to forget the client
    server: Digest | None = None  # the id of the server's key; None: it counts at any server
    nonce: Annotated[Digest, Field(repr=False)]  # 32 random bytes
    issued: Timestamp
    expires: Timestamp

    @model_validator(mode="after")
    def _check_lifetime(self) -> Request:
        lifetime = parse_time(self.expires) - parse_time(self.issued)
        if not timedelta(0) < lifetime <= MAX_LIFETIME:
            raise ValueError(f"expected `expires` at most {MAX_LIFETIME.days} days after `issued`")
        return self

    def payload(self) -> bytes:
        """Return the bytes that are signed."""
        return to_canonical(self.model_dump())

    def digest(self) -> str:
        """Return the digest that identifies this request, however often it is sent."""
        return digest(self.model_dump())


def check_trigger(trigger: str) -> str:
    """Return `trigger` if it is one of the reasons for a request."""
    if trigger not in TRIGGERS:
        raise ConfigError(
            f"no trigger {trigger!r}: {did_you_mean(trigger, TRIGGERS)}"
            f"expected one of {', '.join(TRIGGERS)}"
        )
    return trigger


def new_request(
    *,
    federation: str,
    client: str,
    trigger: str,
    model: str,
    now: datetime,
    server: str | None = None,
    lifetime: timedelta = LIFETIME,
) -> Request:
    """Return a request with a fresh nonce, valid from `now` on."""
    check_trigger(trigger)
    try:
        return Request.model_validate(
            {
                "federation": federation,
                "client": client,
                "trigger": trigger,
                "model": model,
                "server": server,
                "nonce": secrets.token_hex(32),
                "issued": format_time(now),
                "expires": format_time(now + lifetime),
            }
        )
    except ValidationError as error:
        raise ConfigError(f"a request cannot be made of this: {describe_errors(error)}") from None


def sign_request(request: Request, key: PrivateKey) -> bytes:
    """Return the request, signed by its client."""
    return dsse.sign(request.payload(), REQUEST_TYPE, key)


def verify_request(
    data: bytes, keyring: Mapping[str, PublicKey], *, federation: str, server: str | None = None
) -> Request:
    """Return the request if the client that it names signed it, for this federation.

    With `server`, the id of the server's key, it must be for no other server.
    `check_times` is separate, so that a request that came before is recognised after it expired.
    """
    request = unverified_request(data)
    if request.client not in keyring:
        raise RequestError(
            f"client {request.client!r} is unknown: {did_you_mean(request.client, keyring)}"
            "expected one whose public key is in the keyring"
        )
    key = {request.client: keyring[request.client]}
    signed = dsse.key_ids(data, limit=MAX_REQUEST_BYTES)
    others = [name for name, public in keyring.items() if public.keyid in signed]
    if others and request.client not in others:
        raise TrustError(
            f"the request is signed with {others[0]}'s key, expected {request.client}'s"
        )
    dsse.verify(data, REQUEST_TYPE, key, limit=MAX_REQUEST_BYTES)
    if request.federation != federation:
        raise RequestError(
            f"the request is for federation {request.federation!r}, this is {federation!r}"
        )
    if server is not None and request.server not in (None, server):
        raise RequestError(
            f"the request is for the server with key {request.server}, this one has {server}: it "
            "was made for another federation of this name; sign a new one"
        )
    return request


def check_times(request: Request, now: datetime) -> None:
    """Raise RequestError if the request has expired, or comes from the future."""
    if now >= parse_time(request.expires):
        raise RequestError(
            f"the request of {request.client!r} expired at {request.expires}, it is "
            f"{format_time(now)}: sign a new one"
        )
    if parse_time(request.issued) > now + CLOCK_SKEW:
        raise RequestError(
            f"the request of {request.client!r} was issued at {request.issued}, but it is "
            f"{format_time(now)}: set the client's clock, which may be at most "
            f"{CLOCK_SKEW.seconds // 60} minutes ahead"
        )


def unverified_request(data: bytes) -> Request:
    """Return a signed request without verifying it."""
    payload = dsse.unverified_payload(data, REQUEST_TYPE, limit=MAX_REQUEST_BYTES)
    request = parse_document(Request, payload, MAX_REQUEST_BYTES, "a request for erasure")
    if request.payload() != payload:
        raise TrustError("the request is not canonical JSON as it was signed")
    return request


def months_after(start: datetime, months: int) -> datetime:
    """Return the same day and time `months` later, or the last day of a shorter month."""
    year, month = divmod(start.year * 12 + start.month - 1 + months, 12)
    last = calendar.monthrange(year, month + 1)[1]
    return start.replace(year=year, month=month + 1, day=min(start.day, last))


def due_date(received: datetime, further_months: int = 0) -> datetime:
    """Return when a request that came at `received` is due."""
    return months_after(received, MONTHS + further_months)


def days_left(due: datetime, now: datetime) -> int:
    """Return the number of days until `due`: 0 on the day itself, negative once it has passed."""
    days = (due.astimezone(UTC).date() - now.astimezone(UTC).date()).days
    return min(days, -1) if now > due else days


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
    limit = MAX_ACKNOWLEDGEMENT_BYTES
    return parse_document(Acknowledgement, payload, limit, "an acknowledgement")
