"""Whose signatures count on a receipt: the server's, the leaver's own, and named auditors'.

NAME.pub in a folder of keys is a client's or the server's; those of auditors lie in its folder
`auditors`, so that no other client can stand in for one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from secede.erasure.signing.keys import Keyring, load_public
from secede.errors import ConfigError

AUDITORS = "auditors"


@dataclass(frozen=True)
class Signers:
    """The public keys of server and clients, and those of auditors."""

    keys: Keyring
    auditors: Keyring = field(default_factory=lambda: Keyring({}))

    def __post_init__(self) -> None:
        both = self.keys.keys() & self.auditors.keys()
        if both:
            raise ConfigError(f"{min(both)!r} is a client or the server, not an auditor: rename it")
        Keyring({**self.keys, **self.auditors})  # no key has two names

    @classmethod
    def load(cls, folder: Path, further: Iterable[Path] = ()) -> Signers:
        """Read a folder of keys, its auditors, and single files NAME.pub of more auditors."""
        auditors = dict(Keyring.load(folder / AUDITORS)) if (folder / AUDITORS).is_dir() else {}
        for path in further:
            if path.suffix != ".pub" or path.stem in auditors:
                raise ConfigError(f"{path} cannot be used: expected the NAME.pub of a new auditor")
            auditors[path.stem] = load_public(path)
        return cls(Keyring.load(folder), Keyring(auditors))
