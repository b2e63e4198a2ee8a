"""federation.json and the public keys of a home, held by rows of its ledger.

The rows are written when the home is made and at each change. Who numbers the clients differently,
pins other samples or puts another key in a client's place is found at the next start.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from secede import files
from secede.erasure.documents import MAX_NAMES, FederationBody, KeysBody, Row, key_ids
from secede.erasure.signing.keys import load_public_key
from secede.erasure.storage import RESTORE, Entry, Federation, Home, Journal, Ledger
from secede.errors import TrustError

_ACCEPT = "restore it, or enter your own change with `secede federation register`"


def bind_federation(
    home: Home, journal: Journal, ledger: Ledger, federation: Federation, now: datetime
) -> bool:
    """Enter what federation.json is to say and the keys into the ledger; return if they changed.

    It comes before the file is written: what is there until then is the row's before.
    """
    rows = list(ledger.rows())
    digests = _federations(rows)
    changed = bind_keys(home, ledger, rows, now, replace=True)
    if not digests or digests[-1] != federation.digest():
        ledger.append(FederationBody(federation=federation.digest()), now)
        changed = True
    journal.save_ledger_head(ledger.head())
    return changed


def bind_keys(
    home: Home, ledger: Ledger, rows: Sequence[Row], now: datetime, *, replace: bool
) -> bool:
    """Enter keys of new names, with `replace` those in others' place too; return if there are."""
    known = key_ids(row.document for row in rows)
    new = {
        name: key
        for name, key in home.key_ids().items()
        if known.get(name) != key and (replace or name not in known)
    }
    names = sorted(new)
    for start in range(0, len(names), MAX_NAMES):
        part = names[start : start + MAX_NAMES]
        ledger.append(KeysBody(keys={name: new[name] for name in part}), now)
    return bool(new)


def check_bound(home: Home, rows: Sequence[Row]) -> None:
    """Raise unless federation.json, the recipe that it names and all keys are the ledger's last."""
    digests, path = _federations(rows), home.path / "federation.json"
    federation, recipe = home.federation, home.path / "recipe.json"
    # A kill leaves the file of before, and the ledger without any later row.
    is_next = len(digests) > 1 and isinstance(rows[-1].document, FederationBody)
    is_killed = is_next and federation.digest() == digests[-2]
    if not digests or (federation.digest() != digests[-1] and not is_killed):
        raise TrustError(f"{path} is not the one that the ledger names, it was changed: {_ACCEPT}")
    recipes_differ = not recipe.is_file() or files.digest(recipe) != federation.recipe
    if recipes_differ and not is_killed:
        raise TrustError(f"{recipe} is missing or was changed: restore it from a backup")
    found = home.key_ids()
    for name, key in key_ids(row.document for row in rows).items():
        if found.get(name) != key:
            raise TrustError(
                f"{home.keys / name}.pub is missing or another key than the ledger names: {_ACCEPT}"
            )


def check_signer(home: Home, entry: Entry, key: str, rows: Sequence[Row]) -> None:
    """Raise unless a request was signed with a key that its client has or had, or the operator's.

    A client's first key counts as soon as it is there.
    """
    bodies = [row.document for row in rows if isinstance(row.document, KeysBody)]
    keys = {body.keys[entry.client] for body in bodies if entry.client in body.keys}
    if not keys and entry.client in (found := home.key_ids()):
        keys.add(found[entry.client])
    operator = home.path / "operator.pub"
    if key in keys or (operator.is_file() and load_public_key(operator).keyid == key):
        return
    raise TrustError(
        f"request {entry.id} of {entry.client} was signed with a key that the ledger does not name "
        f"as its own: the key was replaced, or the journal altered; {RESTORE}"
    )


def _federations(rows: Sequence[Row]) -> list[str]:
    bodies = [row.document for row in rows]
    return [body.federation for body in bodies if isinstance(body, FederationBody)]
