"""Opens the desk for a request: one process at a time, a whole ledger, a clock that is not behind.

The ledger is verified before anything is appended, against the head that the journal keeps and
those that receipts name; a cut or rewritten one is worked on no further.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime

from secede import files
from secede.erasure.desk import Desk, Tell
from secede.erasure.fields import moment
from secede.erasure.ground import Ground
from secede.erasure.hold import leased, locked
from secede.erasure.home import Home
from secede.erasure.journal import Journal
from secede.erasure.keys import PrivateKey
from secede.erasure.ledger import Ledger
from secede.erasure.lineage import Lineage
from secede.erasure.receipt import SERVER
from secede.erasure.steady import Steady
from secede.errors import ConfigError


@contextmanager
def opened(
    home: Home,
    ground: Ground,
    number: int,
    key: PrivateKey,
    clock: Callable[[], datetime],
    tell: Tell,
) -> Iterator[Desk]:
    """Hold the home and the request; the ledger is whole, and caught up with the journal."""
    if key.public_key.keyid != home.keyring()[SERVER].keyid:
        raise ConfigError(f"the server's key does not belong to {home.keys / SERVER}.pub")
    steady = Steady(clock)
    with (
        files.private(),
        locked(home.path, home.journal) as lock,
        Journal(home.journal) as journal,
        Ledger(home.ledger) as ledger,
        Lineage(home.registry) as registry,
    ):
        ledger.verify(journal.head(), *home.heads()[0])
        changed = (moment(model.changed) for model in registry.models())
        steady.not_before(journal.last_at(number), ledger.last_at(), *changed)
        with leased(lock, journal, number, steady) as holder:
            desk = Desk(
                home=home,
                ground=ground,
                journal=journal,
                ledger=ledger,
                registry=registry,
                key=key,
                holder=holder,
                clock=steady,
                tell=tell,
                number=number,
            )
            home.sweep()
            desk.catch_up()
            yield desk
