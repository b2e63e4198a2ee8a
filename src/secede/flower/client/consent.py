"""Whether the client's owner consents to a local step: by a signature, or by a release at the site.

A request that the owner's key signed is consent. Without one, whoever owns the folder of the kept
updates releases a request, or all of a federation, in a file there; or the app itself decides.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import cast

from secede import files
from secede.erasure import (
    MAX_FURTHER_MONTHS,
    Digest,
    Document,
    Name,
    Plan,
    PublicKey,
    Request,
    Timestamp,
    due_date,
    load_document,
    method_of,
    parse_time,
    save_document,
    unverified_request,
    verify_request,
)
from secede.errors import ConfigError, RequestError, TrustError
from secede.text import short_digest
from secede.unlearning import Method, TakeStep, settings_of

_FILE = "released.json"
_MAX_BYTES = 1 << 20

Consent = bool | Callable[[Request], bool]


class Release(Document):
    """What the owner lets this client take a step for."""

    request: Digest | None = None  # this request alone
    federation: Name | None = None  # any request of this federation
    until: Timestamp | None = None

    def covers(self, request: Request, now: datetime) -> bool:
        """Return whether a request is released."""
        is_open = self.until is None or now < parse_time(self.until)
        return is_open and (
            self.request == request.digest() or self.federation == request.federation
        )


class Releases(Document):
    """All that the owner released."""

    releases: tuple[Release, ...] = ()


def released(folder: Path) -> tuple[Release, ...]:
    """Return what is released in a client's folder."""
    path = folder / _FILE
    return load_document(Releases, path, _MAX_BYTES).releases if path.exists() else ()


def release(folder: Path, new: Release) -> None:
    """Add to what is released in a client's folder."""
    with files.private():
        save_document(folder / _FILE, Releases(releases=(*released(folder), new)))


def revoke(folder: Path) -> int:
    """Take back all releases; return how many there were."""
    count = len(released(folder))
    files.delete(folder / _FILE)
    return count


def check_consent(
    signed: str, folder: Path, *, owner: PublicKey | None, consent: Consent, now: datetime
) -> None:
    """Raise unless the client's owner signed a question's request, or released it."""
    if not signed:
        raise ConfigError("the question holds no request, and the owner consents to none")
    try:
        request = unverified_request(signed.encode())
        if owner is not None and _is_signed(signed.encode(), request, owner):
            if now > due_date(parse_time(request.expires), MAX_FURTHER_MONTHS):
                raise RequestError("it expired long ago: sign a new one")
            return
    except (RequestError, TrustError) as error:
        raise ConfigError(f"its request cannot be used: {error}") from error
    if any(entry.covers(request, now) for entry in released(folder)):
        return
    if consent(request) if callable(consent) else consent:
        return
    raise ConfigError(
        f"the owner of this client has neither signed nor released request "
        f"{short_digest(request.digest())} of federation {request.federation!r}: at the site, "
        f"secede client release FOLDER --request {request.digest()}"
    )


def check_planned(plan: Plan, request: str, step: TakeStep) -> None:
    """Raise unless a step is in the plan for the request, with these settings.

    The ledger has the plan's digest: a server that shows clients another plan is found out.
    """
    if plan.request != request:
        raise ConfigError("the plan that came with the step is for another request")
    settings = settings_of(cast("Method", step.step))
    own = [rung for rung in plan.ladder if rung.rung == "local-step"]
    if all(settings_of(method_of(rung)) != settings for rung in own):
        raise ConfigError("the step, or its settings, are not those of the plan that came with it")


def _is_signed(data: bytes, request: Request, owner: PublicKey) -> bool:
    """Return whether the owner signed a request; TrustError if it says so and is altered."""
    try:
        verify_request(data, {request.client: owner}, federation=request.federation)
    except TrustError:
        return False
    return True
