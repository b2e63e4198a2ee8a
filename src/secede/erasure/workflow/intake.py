"""Takes a request in: written down once, acknowledged to the client, entered into the ledger."""

from __future__ import annotations

from datetime import datetime

from secede import files
from secede.erasure.documents.acknowledgement import of, sign
from secede.erasure.documents.ledger_rows import KINDS
from secede.erasure.storage.home import Home
from secede.erasure.storage.journal import Journal
from secede.erasure.storage.journal_entries import Entry
from secede.erasure.storage.ledger import Ledger
from secede.erasure.storage.model_registry import ModelRegistry
from secede.erasure.workflow.consistency import accepted, check


def write_acknowledgement(home: Home, journal: Journal, entry: Entry, now: datetime) -> Entry:
    """Write what the client is told of its request into the home, and note that it was made out.

    The same one again changes nothing; after an extension the new date is in it, and how it ended
    if nothing was erased.
    """
    path = home.acknowledgement(entry.digest)
    told = of(entry, home.federation.name, journal.transitions(entry.id)[-1])
    data = sign(told, home.server_key())
    with files.private():
        if not path.exists() or path.read_bytes() != data:
            files.write_bytes(path, data)
    return journal.acknowledge(entry.id, now)


def enter_into_ledger(home: Home, journal: Journal, entry: Entry, now: datetime) -> None:
    """Write into the ledger that a request was accepted, and until when it was put off, once."""
    with Ledger(home.ledger) as ledger, ModelRegistry(home.registry) as registry:
        check(home, journal, ledger, registry)
        for body in accepted(entry, journal.request(entry.id)):
            ledger.append_once(KINDS[type(body)], body, now)
        journal.save_ledger_head(ledger.head())
