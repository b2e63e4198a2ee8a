"""What an erasure destroys, in the words of a receipt; the ledger names the same by a key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from secede.erasure.documents.receipt import Destroyed

WORDS = {  # what matters most comes first
    "model-before": "a model that carried the client, its file at the server",
    "last-update": "the client's last update, its file at the server",
    "history": "the updates that the server had kept while training",
    "leaver-state": "what the client returned from its local step",
    "guarded-state": "the same as post-training started from it",
    "server-state": "the state that the server started from",
    "intermediate-state": "a state between two rounds of post-training",
}
LISTED = 12  # of a kind that the receipt lists one by one; more become one entry


@dataclass(frozen=True)
class Gone:
    """Something that was destroyed, and when that was written down."""

    what: str  # a key of WORDS
    digest: str | None
    at: str


def listed(gone: Sequence[Gone]) -> tuple[Destroyed, ...]:
    """Return a receipt's entries for what was destroyed, kind by kind."""
    entries = list[Destroyed]()
    for what, words in WORDS.items():
        same = [thing for thing in gone if thing.what == what]
        if len(same) > LISTED:
            last = max(thing.at for thing in same)
            entries.append(Destroyed(what=f"{words}: {len(same)} of them", at=last))
        else:
            entries += [Destroyed(what=words, at=g.at, digest=g.digest) for g in same]
    return tuple(entries)
