"""Intake of a request: the acknowledgement for its client, and its row in the ledger."""

from __future__ import annotations

from datetime import datetime

from secede import files
from secede.erasure.documents.acknowledgement import Acknowledgement, Ended, sign_acknowledgement
from secede.erasure.documents.ledger_rows import KINDS
from secede.erasure.documents.request import due_date
from secede.erasure.storage.home import Home
from secede.erasure.storage.journal import Journal
from secede.erasure.storage.journal_entries import Entry
from secede.erasure.storage.ledger import Ledger
from secede.erasure.storage.model_registry import ModelRegistry
from secede.erasure.storage.transition_details import ClosingDetails, Transition, read_transition
from secede.erasure.types import format_time
from secede.erasure.workflow.consistency import accepted, check_home
from secede.text import printable

_REASON_LENGTH = 300  # characters


def write_acknowledgement(home: Home, journal: Journal, entry: Entry, now: datetime) -> Entry:
    """Write the acknowledgement of a request into the home, and note in the journal when.

    An unchanged one is not written again. It changes with an extension, and when the request ends
    without an erasure.
    """
    path = home.acknowledgement_path(entry.digest)
    acknowledgement = Acknowledgement(
        request=entry.digest,
        federation=home.federation.name,
        client=entry.client,
        received=format_time(entry.received),
        due=format_time(due_date(entry.received)),
        extended_to=format_time(entry.due) if entry.extended else None,
        reason=entry.reason,
        ended=_ended(read_transition(journal.transitions(entry.id)[-1])),
    )
    data = sign_acknowledgement(acknowledgement, home.server_key())
    with files.private():
        if not path.exists() or path.read_bytes() != data:
            files.write_bytes(path, data)
    return journal.acknowledge(entry.id, now)


def _ended(last: Transition) -> Ended | None:
    if not isinstance(last.details, ClosingDetails):
        return None
    reason = printable(last.details.reason)[:_REASON_LENGTH]
    return Ended.model_validate({"state": last.state, "at": format_time(last.at), "reason": reason})


def enter_into_ledger(home: Home, journal: Journal, entry: Entry, now: datetime) -> None:
    """Write into the ledger that a request was accepted, and until when it was extended, once."""
    with Ledger(home.ledger) as ledger, ModelRegistry(home.registry) as registry:
        check_home(home, journal, ledger, registry)
        for body in accepted(entry, journal.request(entry.id)):
            ledger.append_once(KINDS[type(body)], body, now)
        journal.save_ledger_head(ledger.head())
