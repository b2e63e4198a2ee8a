"""Keys and signed requests for the tests of journal, requests and commands."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from secede.erasure.documents.request import Request, new_request, sign_request
from secede.erasure.signing.keys import Keyring, PrivateKey, generate_key_pair, load_private_key
from secede.erasure.storage.journal import Journal
from secede.erasure.storage.journal_entries import Accepted, AlreadyAccepted

NOW = datetime(2026, 11, 15, 12, 0, 0, tzinfo=UTC)
MODEL = "ab" * 32
FEDERATION = "clinics"

# received -> working (again and again) -> done | dropped
ALLOWED = {
    "received": ("working", "dropped"),
    "working": ("working", "done", "dropped"),
    "done": (),
    "dropped": (),
}


@dataclass(frozen=True)
class People:
    """Clients with their private keys, and the server's keyring."""

    folder: Path
    private: dict[str, PrivateKey]
    ring: Keyring

    def ask(self, client: str = "north", *, now: datetime = NOW, **changed: Any) -> bytes:
        """Return a signed request, with some fields changed before signing."""
        made = new_request(
            federation=FEDERATION, client=client, trigger="objection", model=MODEL, now=now
        )
        return self.signed(made.model_copy(update=changed), by=client)

    def signed(self, request: Request, *, by: str) -> bytes:
        """Return `request` signed by `by`'s key, whoever it names."""
        return sign_request(request, self.private[by])

    def send(
        self, journal: Journal, data: bytes, now: datetime = NOW, **options: Any
    ) -> Accepted | AlreadyAccepted:
        """Give a request to the journal."""
        return journal.accept(data, now, keyring=self.ring, federation=FEDERATION, **options)


def people(folder: Path, *names: str) -> People:
    """Make keys for some clients."""
    for name in names:
        generate_key_pair(folder, name)
    private = {name: load_private_key(folder / f"{name}.key") for name in names}
    return People(folder, private, Keyring.load(folder))


def later(**parts: int) -> datetime:
    """Return a time after NOW."""
    return NOW + timedelta(**parts)
